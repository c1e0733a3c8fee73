"""A draft source for policies without a host form: the continuations of one match per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treespec.drafters.lookup.suffix_text import TrieNode
from treespec.protocols import Frontier, Proposal
from treespec.tree import PADDING_PARENT, ROOT_PARENT

Children = dict[int, tuple[float, float, TrieNode]]
"""Token to (probability, probability of the path, node)."""


class TrieSource:
    """A `DraftSource` over one trie per row, on the host.

    Args:
        roots: each row's last token.
        starts: each row's match; None for a row without one.
        min_prob: the least probability of a node's path.
    """

    def __init__(
        self, roots: Sequence[int], starts: Sequence[TrieNode | None], min_prob: float, is_sampling: bool
    ) -> None:
        self.root_tokens = torch.tensor(roots)
        self.is_sampling = is_sampling
        self.generator = torch.Generator()
        self._min_prob = min_prob
        self._starts = starts
        self._expanded: list[list[Children]] = [[] for _ in starts]

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`."""
        tokens = frontier.tokens
        rows = zip(tokens.tolist(), frontier.parents.tolist(), strict=True)
        levels = [self._expand_row(row, *nodes) for row, nodes in enumerate(rows)]
        width = max(1, *(len(children) for level in levels for children in level))
        probs, candidates = torch.zeros(*tokens.shape, width), torch.zeros(*tokens.shape, width, dtype=torch.int64)
        for row, level in enumerate(levels):
            for column, children in enumerate(level):
                for rank, (token, (prob, _, _)) in enumerate(children.items()):
                    probs[row, column, rank], candidates[row, column, rank] = prob, token
        return Proposal(probs, candidates)

    def _expand_row(self, row: int, tokens: Sequence[int], parents: Sequence[int]) -> list[Children]:
        expanded, level = self._expanded[row], []
        for token, parent in zip(tokens, parents, strict=True):
            path_prob, node = 1.0, self._starts[row] if parent == ROOT_PARENT else None
            if parent not in (ROOT_PARENT, PADDING_PARENT):
                _, path_prob, node = expanded[parent][token]
            entries = [] if node is None else node.children()
            level.append({t: (p, path_prob * p, child) for p, t, child in entries if path_prob * p >= self._min_prob})
        expanded += level
        return level
