"""Suffix lookup: trees of what followed earlier occurrences of the text's ending (SuffixDecoding, Oliaro et al. 2024).

Prompt lookup (Saxena 2023) is the special case of the longest match and its most probable continuation.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from treespec.checks import ShowsOptions, check_count, check_flag, check_number
from treespec.drafters.base import can_use_heap, policy_of_call, single_nodes
from treespec.drafters.lookup.suffix_store import SuffixStore
from treespec.drafters.lookup.suffix_text import Occurrences, SuffixText, TrieNode, greatest_score
from treespec.errors import ConfigError, VocabularyMismatchError
from treespec.policies.heap import grow_best_first
from treespec.protocols import Frontier, Proposal, Session, VerifiedStep
from treespec.tree import PADDING_PARENT, ROOT_PARENT, HostTree, TreeBatch

NODES_PER_TOKEN, MORE_NODES = 2, 4
"""A match of m tokens may have 2 m + 4 nodes."""
Children = dict[int, tuple[float, float, TrieNode]]
"""Token to (probability, probability of the path, node)."""


class Match(NamedTuple):
    """An ending of `length` tokens and where it occurs in one of the texts."""

    length: int
    text: SuffixText
    occurrences: Occurrences

    def node(self, smoothing: float, max_factor: float) -> TrieNode:
        most = self.length * (1 + max_factor)
        return TrieNode(self.text, self.text.ends(self.occurrences), self.length, smoothing, most)


class SuffixLookup(ShowsOptions):
    """Drafts by looking up the text's own ending in the prompt and the output, and in a store of earlier texts.

    For every match length m, in each text, the best continuations form a tree of at most 2 m + 4 nodes; a node's
    probability is the product along its path of count(child) / count(parent) x m / (m + smoothing), where m tokens
    match before it. The tree with the highest sum of probabilities is proposed; a policy other than `BestFirst` grows
    its own from that match. SuffixDecoding itself has no smoothing and `min_prob` 0.1.

    Args:
        max_match: the longest ending that is looked up, in tokens.
        min_match: shorter repeated endings propose nothing.
        store: texts of earlier calls, to which the output of this drafter's calls is added.
        min_prob: the least probability of a node's path.
        smoothing: in tokens; lowers the probabilities of short matches.
        is_longest_only: use the longest match alone, as prompt lookup does.
        max_factor: a match of m tokens is continued by this times m tokens at most.

    Raises `ConfigError`: an option of the wrong type or out of range, or `min_match` above `max_match`.
    """

    confidence_weight = 0.4  # Counts of what followed an ending are less reliable than a distribution.

    def __init__(
        self,
        max_match: int = 16,
        min_match: int = 1,
        store: SuffixStore | None = None,
        min_prob: float = 0.03,
        smoothing: float = 1.0,
        is_longest_only: bool = False,
        max_factor: float = math.inf,
    ) -> None:
        self._max_match = check_count("max_match", max_match)
        self._min_match = check_count("min_match", min_match)
        if min_match > max_match:
            raise ConfigError(f"min_match is {min_match} and max_match {max_match}: nothing would ever be looked up")
        if store is not None and not isinstance(store, SuffixStore):
            raise ConfigError(f"store must be a SuffixStore, got {type(store).__name__}: SuffixStore(texts)")
        self.store = store
        self._min_prob = check_number("min_prob", min_prob, lambda x: 0 <= x <= 1, "lie in [0, 1]")
        self._smoothing = check_number("smoothing", smoothing, lambda x: 0 <= x < math.inf, "be a number >= 0")
        self._is_longest_only = check_flag("is_longest_only", is_longest_only)
        self._max_factor = check_number("max_factor", max_factor, lambda x: x >= 0, "be a number >= 0")

    def start(self, session: Session) -> None:
        """Begin a call. Raises `VocabularyMismatchError`: the store holds ids beyond the vocabulary."""
        self._session = session
        self._rows: list[SuffixText] = []
        if self.store is not None:
            self.store.add_recorded()
        if self.store is not None and self.store.max_token >= session.vocab_size:
            raise VocabularyMismatchError(
                f"the store holds token {self.store.max_token} and the model's vocabulary has {session.vocab_size} "
                "tokens: use one SuffixStore per vocabulary"
            )
        self.add_rows(session.history.num_rows)

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees of what followed earlier occurrences of each row's ending; only the root where there are none."""
        policy = policy_of_call(self._session)
        depth = min(max_depth, policy.max_nodes - 1)
        budget = policy.max_nodes - 1
        if depth < 1:
            return single_nodes(self._session.history.last_tokens)
        if can_use_heap(policy):
            depth = min(depth, policy.depth or depth)
            return TreeBatch.from_host_trees([self._best(row, budget, depth)[0] for row in self._rows])
        roots = [row.ending(1)[0] for row in self._rows]
        matches = [self._best(row, budget, depth)[1] for row in self._rows]
        starts = [None if match is None else match.node(self._smoothing, self._max_factor) for match in matches]
        return policy.grow(TrieSource(roots, starts, self._min_prob, self._session.is_sampling), max_depth)

    def update(self, step: VerifiedStep) -> None:
        """Every row's text grows."""
        for row, tokens in zip(self._rows, step.emitted, strict=True):
            row.append(tokens)

    def select_rows(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[b] for b in rows]

    def add_rows(self, num_rows: int) -> None:
        """See `ServingDrafter`; the store gets the output of the rows that have left."""
        history = self._session.history
        if self.store is not None:
            self.store.add_recorded(self._rows)
        for row in range(history.num_rows - num_rows, history.num_rows):
            text = SuffixText(history.tokens(row).tolist())
            self._rows.append(text)
            if self.store is not None:
                self.store.record(text, self._max_match)

    def _best(self, row: SuffixText, budget: int, depth: int) -> tuple[HostTree, Match | None]:
        """The tree with the highest score below a row's last token, and its match."""
        ending = row.ending(self._max_match)
        best, best_match, best_score = HostTree([ending[-1]], [-1], [1.0]), None, 0.0
        for match in self._matches(row, ending):
            num_nodes = min(budget, NODES_PER_TOKEN * match.length + MORE_NODES)
            most = greatest_score(match.length, min(num_nodes, depth), self._smoothing)
            if most <= best_score or (best_match and self._is_longest_only):
                break  # Shorter matches have no more nodes, and less probable ones.
            start = match.node(self._smoothing, self._max_factor)
            tree = grow_best_first(ending[-1], start, TrieNode.children, num_nodes + 1, depth, self._min_prob)
            score = sum(tree.values) - 1
            if score > best_score:
                best, best_match, best_score = tree, match, score
        return best, best_match

    def _matches(self, row: SuffixText, ending: Sequence[int]) -> list[Match]:
        """Matches in both texts, longest first, without those that occur only where a longer one does."""
        found = [(row, row.find(ending, len(row) - 1))]  # Without the ending itself, which nothing follows.
        if self.store is not None:
            found.append((self.store.text, self.store.find(ending)))
        matches = []
        for text, by_length in found:
            num_longer = 0
            for length in range(len(by_length), self._min_match - 1, -1):
                occurrences = by_length[length - 1]
                if occurrences.num_found > num_longer:
                    num_longer = occurrences.num_found
                    matches.append(Match(length, text, occurrences))
        return sorted(matches, key=lambda match: -match.length)  # Stable: the row's own text comes first.


class TrieSource:
    """A `DraftSource` for policies without a host form: the continuations of one match per row, or None."""

    def __init__(
        self, roots: Sequence[int], starts: Sequence[TrieNode | None], min_prob: float, is_sampling: bool
    ) -> None:
        self.root_tokens = torch.tensor(roots, device="cpu")
        self.is_sampling = is_sampling
        self.generator = torch.Generator("cpu")
        self._starts = starts
        self._min_prob = min_prob
        self._expanded: list[list[Children]] = [[] for _ in starts]

    def expand(self, frontier: Frontier) -> Proposal:
        tokens = frontier.tokens
        rows = zip(tokens.tolist(), frontier.parents.tolist(), strict=True)
        levels = [self._expand_row(row, *nodes) for row, nodes in enumerate(rows)]
        width = max(1, *(len(children) for level in levels for children in level))
        probs = torch.zeros(*tokens.shape, width, dtype=torch.float32, device="cpu")
        candidates = torch.zeros(*tokens.shape, width, dtype=torch.int64, device="cpu")
        for row, level in enumerate(levels):
            for column, children in enumerate(level):
                for rank, (token, (prob, _, _)) in enumerate(children.items()):
                    probs[row, column, rank], candidates[row, column, rank] = prob, token
        return Proposal(probs, candidates)

    def _expand_row(self, row: int, tokens: Sequence[int], parents: Sequence[int]) -> list[Children]:
        expanded = self._expanded[row]
        level = []
        for token, parent in zip(tokens, parents, strict=True):
            path_prob = 1.0
            node = self._starts[row] if parent == ROOT_PARENT else None
            if parent not in (ROOT_PARENT, PADDING_PARENT):
                _, path_prob, node = expanded[parent][token]
            entries = [] if node is None else node.children()
            level.append({t: (p, path_prob * p, child) for p, t, child in entries if path_prob * p >= self._min_prob})
        expanded += level
        return level
