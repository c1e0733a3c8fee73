"""What policies without a host form grow their trees from: the continuations of one match per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from treespec.drafters.lookup.suffix_text import Place
from treespec.protocols import Frontier, Proposal
from treespec.tree import PADDING_PARENT, ROOT_PARENT


class TrieNode(NamedTuple):
    """A node of the trie: the place that it stands for, and its path's probability."""

    place: Place
    prob: float

    def children(self, min_prob: float) -> list[tuple[float, int, TrieNode]]:
        """(probability, token, child) of the children whose paths are probable enough, most probable first."""
        likely = [entry for entry in self.place.children() if self.prob * entry[0] >= min_prob]
        return [(share, token, TrieNode(place, self.prob * share)) for share, token, place in likely]


class TrieSource:
    """A `DraftSource` over one trie per row, on the host.

    Args:
        roots: each row's last token.
        starts: per row the place behind the match; None where there is no match.
        min_prob: the least probability of a node's path.
    """

    def __init__(
        self,
        roots: Sequence[int],
        starts: Sequence[Place | None],
        min_prob: float,
        is_sampling: bool,
    ) -> None:
        self.root_tokens = torch.tensor(roots)
        self.is_sampling = is_sampling
        self.generator = torch.Generator()
        self._min_prob = min_prob
        self._roots = [None if start is None else TrieNode(start, 1.0) for start in starts]
        self._children: list[list[dict[int, tuple[float, TrieNode]]]] = [[] for _ in starts]

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`."""
        tokens, parents = frontier.tokens, frontier.parents
        levels: list[list[dict[int, tuple[float, TrieNode]]]] = []
        for row, known in enumerate(self._children):
            pairs = zip(tokens[row].tolist(), parents[row].tolist(), strict=True)
            nodes = [self._find(row, token, parent) for token, parent in pairs]
            levels.append([self._expand(node) for node in nodes])
            known += levels[-1]
        width = max(max(len(children) for children in level) for level in levels)
        probs, candidates = torch.zeros(*tokens.shape, max(width, 1)), torch.zeros(*tokens.shape, max(width, 1)).long()
        for row, level in enumerate(levels):
            for slot, children in enumerate(level):
                for rank, (token, (prob, _)) in enumerate(children.items()):
                    probs[row, slot, rank], candidates[row, slot, rank] = prob, token
        return Proposal(probs, candidates)

    def _expand(self, node: TrieNode | None) -> dict[int, tuple[float, TrieNode]]:
        children = [] if node is None else node.children(self._min_prob)
        return {token: (share, child) for share, token, child in children}

    def _find(self, row: int, token: int, parent: int) -> TrieNode | None:
        if parent == PADDING_PARENT:
            return None
        return self._roots[row] if parent == ROOT_PARENT else self._children[row][parent][token][1]
