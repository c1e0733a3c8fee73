"""Suffix lookup: trees of what followed earlier occurrences of the text's ending.

Scoring over all match lengths as in SuffixDecoding (Oliaro et al. 2024), in this text and in those of earlier calls;
prompt lookup (Saxena 2023) is the special case of the longest match and its most probable continuation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from treespec.checks import check_count, check_number
from treespec.drafters.base import policy_of_call, single_nodes
from treespec.drafters.host_trees import can_use_heap, stack_trees, to_device
from treespec.drafters.lookup.suffix_store import SuffixStore
from treespec.drafters.lookup.suffix_text import Occurrences, SuffixText, TrieNode, greatest_score
from treespec.drafters.lookup.trie_source import TrieSource
from treespec.errors import ConfigError, VocabularyMismatchError
from treespec.policies.heap import HostTree, grow_best_first
from treespec.protocols import Session, VerifiedStep
from treespec.tree import TreeBatch

NODES_PER_TOKEN, MORE_NODES = 2, 4
"""A match of m tokens may have 2 m + 4 nodes."""


class Match(NamedTuple):
    """An ending of `length` tokens and where it occurs in one of the texts."""

    length: int
    text: SuffixText
    occurrences: Occurrences

    def node(self, smoothing: float) -> TrieNode:
        """The trie node of the ending."""
        return TrieNode(self.text, self.text.ends(self.occurrences), self.length, smoothing)


class SuffixLookup:
    """Drafts by looking up the text's own ending in the prompt and the output, and in a store of earlier texts.

    For every match length m, in each text, the best continuations form a tree of at most 2 m + 4 nodes; a node's
    probability is the product along its path of count(child) / count(parent) x m / (m + smoothing), where m tokens
    match before it, and nodes below `min_prob` are dropped. The tree with the highest sum of probabilities, its
    expected number of accepted tokens, is proposed. A policy other than `BestFirst` grows its own tree from that match.
    SuffixDecoding itself has no smoothing and `min_prob` 0.1.

    Args:
        max_match: the longest ending that is looked up, in tokens.
        min_match: shorter repeated endings propose nothing.
        store: texts of earlier calls, to which the output of this drafter's calls is added; None: no memory of earlier
            calls.
        min_prob: the least probability of a node's path.
        smoothing: in tokens; lowers the probabilities of short matches.
        is_longest_only: use the longest match alone, as prompt lookup does.

    Raises:
        ConfigError: an option of the wrong type or out of range, or `min_match` above `max_match`.
    """

    confidence_weight = 0.4
    """The initial weight in `Merge`: counts of what followed an ending are less reliable than a distribution."""

    def __init__(
        self,
        max_match: int = 16,
        min_match: int = 1,
        store: SuffixStore | None = None,
        min_prob: float = 0.03,
        smoothing: float = 1.0,
        is_longest_only: bool = False,
    ) -> None:
        self._max_match, self._min_match = check_count("max_match", max_match), check_count("min_match", min_match)
        if min_match > max_match:
            raise ConfigError(f"min_match is {min_match} and max_match {max_match}: nothing would ever be looked up")
        if store is not None and not isinstance(store, SuffixStore):
            raise ConfigError(f"store must be a SuffixStore, got {type(store).__name__}: SuffixStore(texts)")
        self._store = store
        self._min_prob = check_number("min_prob", min_prob, lambda x: 0 <= x <= 1, "lie in [0, 1]")
        self._smoothing = check_number("smoothing", smoothing, lambda x: 0 <= x < math.inf, "be a number >= 0")
        self._is_longest_only = is_longest_only

    @property
    def store(self) -> SuffixStore | None:
        """The texts of earlier calls."""
        return self._store

    def start(self, session: Session) -> None:
        """Begin a call with one text per row, its prompt; the output of the last call goes into the store.

        Raises:
            VocabularyMismatchError: the store holds ids beyond the vocabulary.
        """
        self._session, self._policy = session, policy_of_call(session)
        history = session.history
        self._rows = [SuffixText(history.tokens(b).tolist()) for b in range(history.num_rows)]
        if self._store is None:
            return
        self._store.add_recorded()
        if self._store.max_token >= session.vocab_size:
            raise VocabularyMismatchError(
                f"the store holds token {self._store.max_token} and the model's vocabulary has {session.vocab_size} "
                "tokens: use one SuffixStore per vocabulary"
            )
        for row in self._rows:
            self._store.record(row, self._max_match)

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees of what followed earlier occurrences of each row's ending; only the root where there are none."""
        policy, device = self._policy, self._session.device
        depth, budget = min(max_depth, policy.max_nodes - 1), policy.max_nodes - 1
        if depth < 1:
            return single_nodes(self._session.history.last_tokens)
        if can_use_heap(policy):
            depth = min(depth, policy.depth or depth)
            return stack_trees([self._best(row, budget, depth)[0] for row in self._rows], device)
        roots = [row.ending(1)[0] for row in self._rows]
        matches = [self._best(row, budget, depth)[1] for row in self._rows]
        starts = [None if match is None else match.node(self._smoothing) for match in matches]
        source = TrieSource(roots, starts, self._min_prob, self._session.is_sampling)
        return to_device(policy.grow(source, max_depth), device)

    def update(self, step: VerifiedStep) -> None:
        """Append the emitted tokens to every row's text."""
        for row, tokens in zip(self._rows, step.emitted, strict=True):
            row.append(tokens)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._rows = [self._rows[b] for b in rows]

    def _best(self, row: SuffixText, budget: int, depth: int) -> tuple[HostTree, Match | None]:
        """The tree with the highest score below a row's last token, and its match."""
        ending = row.ending(self._max_match)
        best, best_match, best_score = HostTree([ending[-1]], [-1], [1.0]), None, 0.0
        for match in self._matches(row, ending):
            num_nodes = min(budget, NODES_PER_TOKEN * match.length + MORE_NODES)
            most = greatest_score(match.length, min(num_nodes, depth), self._smoothing)
            if most <= best_score or (best_match and self._is_longest_only):
                break  # Shorter matches have no more nodes, and less probable ones.
            start = match.node(self._smoothing)
            tree = grow_best_first(ending[-1], start, TrieNode.children, num_nodes + 1, depth, self._min_prob)
            score = sum(tree.values) - 1
            if score > best_score:
                best, best_match, best_score = tree, match, score
        return best, best_match

    def _matches(self, row: SuffixText, ending: Sequence[int]) -> list[Match]:
        """Matches in both texts, longest first, without those that occur only where a longer one does."""
        found = [(row, row.find(ending, len(row) - 1))]
        if self._store is not None:
            found.append((self._store.text, self._store.find(ending)))
        matches = []
        for text, by_length in found:
            num_longer = 0
            for length in range(len(by_length), self._min_match - 1, -1):
                occurrences = by_length[length - 1]
                if occurrences.num_found > num_longer:
                    num_longer = occurrences.num_found
                    matches.append(Match(length, text, occurrences))
        return sorted(matches, key=lambda match: -match.length)
