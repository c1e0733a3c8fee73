"""What may be drafted in a step: nothing, a chain, or a best-first tree of some size and depth."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from treespec.policies.best_first import CHILD_SHARE, BestFirst
from treespec.policies.chain import Chain
from treespec.policies.growing import TreeBuilder
from treespec.tree import PADDING_PARENT, SELECTED

PLAIN = 0
"""The number of the candidate that drafts nothing."""
CHAIN_LENGTHS, TREE_SIZES = (1, 2, 3, 4, 6), (4, 8, 12, 16, 24, 32)
DEPTHS, ANY_DEPTH = (2, 4), 1 << 20
BEST_CHILD_SHARE = 0.6
"""A child is expected to have at most this share of its parent's value."""


class StoppedBestFirst(BestFirst):
    """Best-first trees that grow only where it pays; tables without draft passes ignore that, sampled children too.

    Attributes:
        least_gain: a row grows while its last level raised the expected accepted tokens by more.
        least_value: nodes get children only where one may have a higher value.
        num_passes: draft passes since this was set to 0.
    """

    def __init__(self, num_nodes: int, depth: int | None) -> None:
        super().__init__(num_nodes, depth=depth, child_share=CHILD_SHARE)
        self.least_gain = self.least_value = 0.0
        self.num_passes = 0

    def _least_gain(self, children: str) -> float:
        self.num_passes += 1
        return self.least_gain if children == SELECTED else 0.0

    def _frontier(
        self,
        builder: TreeBuilder,
        level: Int[np.ndarray, "B w"],
        level_ranks: Float[np.ndarray, "B w"],
        ranks: Float[np.ndarray, "B M"],
        share: float,
    ) -> Int[np.ndarray, "B F"]:
        nodes = super()._frontier(builder, level, level_ranks, ranks, share)
        if share == 1:  # Sampled children, which may not stop by what was drawn.
            return nodes
        values = np.where(nodes >= 0, builder.take(builder.values, nodes), 0.0)
        return np.where(BEST_CHILD_SHARE * values >= self.least_value, nodes, PADDING_PARENT)


class Candidate(NamedTuple):
    """`num_nodes`: the most nodes, root included. `depth`: the deepest level; `ANY_DEPTH`: the drafter's own limit."""

    num_nodes: int
    depth: int
    is_chain: bool = False

    @property
    def name(self) -> str:
        if self.num_nodes == 1:
            return "plain"
        if self.is_chain:
            return f"chain of {self.depth}"
        return f"tree of {self.num_nodes}" + (f", depth {self.depth}" if self.depth < ANY_DEPTH else "")

    def policy(self) -> Chain | StoppedBestFirst | None:
        """None for plain decoding."""
        if self.num_nodes == 1:
            return None
        if self.is_chain:
            return Chain(self.depth)
        return StoppedBestFirst(self.num_nodes, None if self.depth == ANY_DEPTH else self.depth)


class Candidates(list[Candidate]):
    """The C candidates of at most `max_nodes` nodes: plain decoding, chains, then trees by depth and size.

    `is_sampled`: children may be drawn, so that trees cannot stop by what was drawn: trees of several depths.
    """

    def __init__(self, max_nodes: int, is_chain_only: bool = False, is_sampled: bool = False) -> None:
        chains = [Candidate(k + 1, k, is_chain=True) for k in CHAIN_LENGTHS if k < max_nodes]
        super().__init__([Candidate(1, 0), *chains])
        sizes = [size for size in TREE_SIZES if 2 < size < max_nodes] + [max_nodes] * (max_nodes > 2)
        self.chains = slice(1, len(self))
        self.by_depth = dict[int, slice]()
        for depth in () if is_chain_only else (*(DEPTHS if is_sampled else ()), ANY_DEPTH):
            first = len(self)
            self += [Candidate(size, depth) for size in sizes if depth < size - 1 or depth == ANY_DEPTH]
            if first < len(self):
                self.by_depth[depth] = slice(first, len(self))
        self.names = [candidate.name for candidate in self]
        self.policies = [candidate.policy() for candidate in self]
        self.num_nodes = np.array([c.num_nodes - 1 for c in self])
        """The nodes below each candidate's root, [C]."""
