"""Suffix lookup: what followed the earlier occurrences of the text's ending drafts the tree.

Scoring over all match lengths as in SuffixDecoding (Oliaro et al. 2024), in this text and in those of earlier calls;
prompt lookup (Saxena 2023) is the special case of the longest match and its most probable continuation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from treespec.checks import check_count, check_number
from treespec.drafters.base import (
    Shape,
    can_use_heap,
    own_policy,
    policy_of_call,
    single_nodes,
    stack_trees,
    tell_policy,
    to_device,
)
from treespec.drafters.lookup.suffix_store import SuffixStore
from treespec.drafters.lookup.suffix_text import Occurrences, Place, SuffixText, greatest_score
from treespec.drafters.lookup.trie_source import TrieSource
from treespec.errors import ConfigError, VocabularyMismatchError
from treespec.policies.heap import HostTree, grow_best_first
from treespec.protocols import Session, VerifiedStep
from treespec.tree import TreeBatch


class Match(NamedTuple):
    """An ending of `length` tokens and where it occurs in one of the texts."""

    length: int
    text: SuffixText
    occurrences: Occurrences

    def place(self, doubt: float) -> Place:
        """What is to be continued."""
        return Place(self.text, self.text.ends(self.occurrences), self.length, doubt)


class SuffixLookup:
    """Drafts by looking up the text's own ending in the prompt and the output, and in a store of earlier texts.

    For every match length m, in each text, the best continuations form a tree of at most `factor` m + `offset` nodes; a
    node's probability is the product of count(child) / count(parent) along its path, each times m / (m + doubt) where m
    tokens match before it, and nodes below `min_prob` are dropped. The tree with the highest sum of probabilities, its
    expected accepted tokens, is proposed. A policy that is not `BestFirst` grows its own tree from that match.
    SuffixDecoding itself has no doubt and `min_prob` .1.

    Args:
        max_match: the longest ending looked up, in tokens.
        min_match: shorter repeated endings propose nothing.
        policy: how trees are shaped; None takes the call's policy.
        store: texts of earlier calls; this drafter adds what its calls generate. None: nothing is kept across calls.
        factor, offset: how many nodes a match of one more token, and any match, may have.
        min_prob: the least probability of a node's path.
        doubt: how much short matches are doubted; 0 takes every share of the occurrences at its word.
        is_longest_only: look at the longest match alone, as prompt lookup does.

    Raises:
        ConfigError, InvalidTreeError: an option of the wrong kind or out of range, or `min_match` above `max_match`;
            see also `as_policy`.
    """

    confidence_weight = 0.4
    """What `Merge` begins with: what came after an ending before is less than a distribution."""

    def __init__(
        self,
        max_match: int = 16,
        min_match: int = 1,
        policy: Shape | None = None,
        store: SuffixStore | None = None,
        factor: float = 2.0,
        offset: float = 4.0,
        min_prob: float = 0.03,
        doubt: float = 1.0,
        is_longest_only: bool = False,
    ) -> None:
        self._max_match, self._min_match = check_count("max_match", max_match), check_count("min_match", min_match)
        if min_match > max_match:
            raise ConfigError(f"min_match is {min_match} and max_match {max_match}: nothing would ever be looked up")
        self._factor = check_number("factor", factor, lambda x: 0 <= x < math.inf, "be a number that is not negative")
        self._offset = check_number("offset", offset, math.isfinite, "be a finite number")
        if factor + offset < 1:
            raise ConfigError(f"factor + offset must be at least one node, got {factor!r} + {offset!r}")
        self._min_prob = check_number("min_prob", min_prob, lambda x: 0 <= x <= 1, "lie in [0, 1]")
        self._doubt = check_number("doubt", doubt, lambda x: 0 <= x < math.inf, "be a number that is not negative")
        if store is not None and not isinstance(store, SuffixStore):
            raise ConfigError(f"store must be a SuffixStore, got {type(store).__name__}: SuffixStore(texts)")
        self._own_policy, self._store = own_policy(policy), store
        self._is_longest_only = is_longest_only

    @property
    def store(self) -> SuffixStore | None:
        """The texts of earlier calls."""
        return self._store

    def start(self, session: Session) -> None:
        """Read the prompts: one text per row; the store takes what the last call generated.

        Raises:
            VocabularyMismatchError: the store holds ids beyond the vocabulary.
        """
        self._session = session
        self._policy = policy_of_call(self._own_policy, session)
        history = session.history
        self._rows = [SuffixText(history.tokens(b).tolist()) for b in range(history.num_rows)]
        if self._store is None:
            return
        self._store.start()
        if self._store.max_token >= session.vocab_size:
            raise VocabularyMismatchError(
                f"the store holds token {self._store.max_token} and the model's vocabulary has {session.vocab_size} "
                "tokens: use one SuffixStore per vocabulary"
            )
        for row in self._rows:
            self._store.follow(row, self._max_match)

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees of what followed earlier occurrences of each row's ending; roots alone where there are none."""
        policy, device = self._policy, self._session.device
        depth, budget = min(max_depth, policy.max_nodes - 1), policy.max_nodes - 1
        if depth < 1:
            return single_nodes(self._session.history.last_tokens)
        if can_use_heap(policy):
            depth = min(depth, policy.depth or depth)
            return stack_trees([self._best(row, budget, depth)[0] for row in self._rows], device)
        roots = [row.ending(1)[0] for row in self._rows]
        matches = [self._best(row, budget, depth)[1] for row in self._rows]
        sources = [None if match is None else match.place(self._doubt) for match in matches]
        source = TrieSource(roots, sources, self._min_prob, self._session.is_sampling)
        return to_device(policy.grow(source, max_depth), device)

    def update(self, step: VerifiedStep) -> None:
        """Append the emitted tokens to every row's text."""
        tell_policy(self._own_policy, self._session, step)
        for row, tokens in zip(self._rows, step.emitted, strict=True):
            row.append(tokens)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._rows = [self._rows[b] for b in rows]

    def _best(self, row: SuffixText, budget: int, depth: int) -> tuple[HostTree, Match | None]:
        """The tree with the highest score below a row's last token, and the match that it comes from."""
        ending = row.ending(self._max_match)
        best, best_match, best_score = HostTree([ending[-1]], [-1], [1.0]), None, 0.0
        for match in self._matches(row, ending):
            num_nodes = min(budget, int(self._factor * match.length + self._offset))
            most = greatest_score(match.length, min(num_nodes, depth), self._doubt)
            if most <= best_score or (best_match and self._is_longest_only):
                break  # Shorter matches may have no more nodes, and theirs are worth no more.
            place = match.place(self._doubt)
            tree = grow_best_first(ending[-1], place, Place.children, num_nodes + 1, depth, self._min_prob)
            score = sum(tree.values) - 1
            if score > best_score:
                best, best_match, best_score = tree, match, score
        return best, best_match

    def _matches(self, row: SuffixText, ending: Sequence[int]) -> list[Match]:
        """Matches of both texts, longest first; those that occur where a longer one does are left out."""
        found = [(row, row.find(ending, len(row) - 1))]
        if self._store is not None:
            found.append((self._store.text, self._store.find(ending)))
        matches = []
        for text, places in found:
            longer = 0
            for length in range(len(places), self._min_match - 1, -1):
                if places[length - 1].num_found > longer:
                    longer = places[length - 1].num_found
                    matches.append(Match(length, text, places[length - 1]))
        return sorted(matches, key=lambda match: -match.length)
