"""The chain to beat: the single best path through the merged proposals of several drafters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treespec import Chain, Merge
from treespec.protocols import Drafter, Session, VerifiedStep
from treespec.tree import PADDING_PARENT, TreeBatch


class MergedChain:
    """Merges the chains of several drafters and keeps the most valuable child at every depth, so that trees and chains
    are compared with the same sources.

    Args:
        drafters: two or more drafters without policies of their own.
        num_drafted: the chain's draft tokens.
    """

    def __init__(self, drafters: Sequence[Drafter], num_drafted: int) -> None:
        self.policy = Chain(num_drafted)
        self._merge = Merge(drafters, num_nodes=1 + num_drafted * len(drafters))

    def start(self, session: Session) -> None:
        self._merge.start(session)

    def propose(self, max_depth: int) -> TreeBatch:
        trees = self._merge.propose(max_depth)
        return trees.keep_nodes(best_path(trees))

    def commit(self, step: VerifiedStep) -> None:
        self._merge.commit(step)

    def select_rows(self, rows: Sequence[int]) -> None:
        self._merge.select_rows(rows)


def best_path(trees: TreeBatch) -> torch.Tensor:
    """bool [B, N]: the root and, from there on, each kept node's most valuable child (the first of equals)."""
    assert trees.values is not None
    parents, values = trees.parents.tolist(), trees.values.tolist()
    keep = torch.zeros_like(trees.parents, dtype=torch.bool)
    for row, row_parents in enumerate(parents):
        best: dict[int, int] = {}
        for node, parent in enumerate(row_parents):
            if parent != PADDING_PARENT and (parent not in best or values[row][node] > values[row][best[parent]]):
                best[parent] = node
        node = 0
        keep[row, 0] = True
        while node in best:
            node = best[node]
            keep[row, node] = True
    return keep
