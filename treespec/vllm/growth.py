"""Trees that grow only where a node may be worth its verification."""

from __future__ import annotations

import numpy as np

from treespec.policies.control import StoppedBestFirst
from treespec.policies.growing import TreeBuilder
from treespec.tree import PADDING_PARENT

BEST_CHILD_SHARE = 0.6
"""A child is expected to have at most this share of its parent's value."""


class WorthwhileTrees(StoppedBestFirst):
    """Best-first trees of selected children whose nodes of little value get no children, nor a draft pass for these.

    Attributes:
        least_value: a node is verified only if its value is higher; 0 expands as `StoppedBestFirst` does, which sampled
            children need.
    """

    least_value = 0.0

    def _frontier(
        self, builder: TreeBuilder, level: np.ndarray, level_ranks: np.ndarray, ranks: np.ndarray, share: float
    ) -> np.ndarray:
        nodes = super()._frontier(builder, level, level_ranks, ranks, share)
        values = np.where(nodes >= 0, builder.take(builder.values, nodes), 0.0)
        return np.where(BEST_CHILD_SHARE * values >= self.least_value, nodes, PADDING_PARENT)
