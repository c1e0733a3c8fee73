"""Rules walked row by row."""

from __future__ import annotations

from torch import Tensor

from treespec.protocols import VerificationRule
from treespec.tree import TreeBatch, Verdict
from treespec.verification.random_source import GivenUniforms


def walk_rows(
    rule: VerificationRule, trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor
) -> list[Verdict]:
    """The rule's own walk, row by row and unchecked: for CPUs, and the reference of the dense forms."""
    coin_rows, draw_rows = coins.tolist(), draws.tolist()
    return [
        rule.verify(tree, target_probs[b].__getitem__, GivenUniforms(coin_rows[b], draw_rows[b]))
        for b, tree in enumerate(trees.trees)
    ]
