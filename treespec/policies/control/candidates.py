"""What may be drafted in a step: nothing, a chain, or a best-first tree of some size and depth."""

from typing import NamedTuple

import numpy as np

from treespec.policies.best_first import CHILD_SHARE, BestFirst
from treespec.policies.chain import Chain
from treespec.tree import SELECTED

PLAIN = 0
"""The number of the candidate that drafts nothing."""
CHAIN_LENGTHS, TREE_SIZES = (1, 2, 3, 4, 6), (4, 8, 12, 16, 24, 32)
DEPTHS, ANY_DEPTH = (2, 4), 1 << 20


class StoppedBestFirst(BestFirst):
    """Best-first trees that grow only where it pays; tables without draft passes ignore that, sampled children too.

    Attributes:
        least_gain: a row grows while its last level raised the expected accepted tokens by more.
        num_passes: draft passes since this was set to 0.
    """

    def __init__(self, num_nodes: int, depth: int | None) -> None:
        super().__init__(num_nodes, depth=depth, child_share=CHILD_SHARE)
        self.least_gain, self.num_passes = 0.0, 0

    def _least_gain(self, children: str) -> float:
        self.num_passes += 1
        return self.least_gain if children == SELECTED else 0.0


class Shape(NamedTuple):
    """What candidates of several sizes share. `depth`: the deepest level; `ANY_DEPTH`: the drafter's own limit."""

    is_chain: bool
    depth: int = ANY_DEPTH


class Candidate(NamedTuple):
    """`num_nodes`: the most nodes, root included. `policy`: None for plain decoding."""

    name: str
    num_nodes: int
    shape: Shape
    policy: Chain | StoppedBestFirst | None


class Candidates(list[Candidate]):
    """The C candidates of at most `max_nodes` nodes: plain decoding, chains, then trees by depth and size.

    `is_sampled`: children may be drawn, so that trees cannot stop by what was drawn: trees of several depths.
    """

    def __init__(self, max_nodes: int, is_chain_only: bool = False, is_sampled: bool = False) -> None:
        depths = [*(DEPTHS if is_sampled else ()), ANY_DEPTH]
        self.shapes = [Shape(True)] + [Shape(False, depth) for depth in depths if not is_chain_only]
        super().__init__([Candidate("plain", 1, self.shapes[0], None)])
        lengths = [k for k in CHAIN_LENGTHS if k < max_nodes]
        self += [Candidate(f"chain of {k}", k + 1, self.shapes[0], Chain(k)) for k in lengths]
        sizes = [size for size in TREE_SIZES if 2 < size < max_nodes] + [max_nodes] * (max_nodes > 2)
        self += [
            _tree(size, shape) for shape in self.shapes[1:] for size in sizes if not size - 1 <= shape.depth < ANY_DEPTH
        ]
        self.num_nodes = np.array([c.num_nodes - 1 for c in self])
        """The nodes below each candidate's root, [C]."""
        self.numbers = np.array([self.shapes.index(c.shape) for c in self])
        """The number of each candidate's shape, [C]."""


def _tree(size: int, shape: Shape) -> Candidate:
    depth = None if shape.depth == ANY_DEPTH else shape.depth
    name = f"tree of {size}" + ("" if depth is None else f", depth {depth}")
    return Candidate(name, size, shape, StoppedBestFirst(size, depth))
