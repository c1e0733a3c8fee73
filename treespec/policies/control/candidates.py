"""What may be drafted in a step: nothing, a chain, or a best-first tree of some size and depth."""

from typing import NamedTuple

import numpy as np

from treespec.policies.best_first import CHILD_SHARE, BestFirst
from treespec.policies.chain import Chain
from treespec.tree import SELECTED

PLAIN = 0
"""The number of the candidate that drafts nothing."""
CHAIN_LENGTHS = (1, 2, 3, 4, 6)
TREE_SIZES = (4, 8, 12, 16, 24, 32)
ACCELERATOR_SIZE = 64
DEPTHS = (2, 3, 4, 6)
ANY_DEPTH = 1 << 20


class StoppedBestFirst(BestFirst):
    """Best-first trees that stop at the level that no longer pays; tables without draft passes ignore that.

    Attributes:
        least_gain: a row of selected children grows while its last level raised the expected accepted tokens by more.
        num_passes: draft passes since this was set to 0.
    """

    def __init__(self, num_nodes: int, depth: int | None) -> None:
        super().__init__(num_nodes, depth=depth, child_share=CHILD_SHARE)
        self.least_gain, self.num_passes = 0.0, 0

    def _least_gain(self, children: str) -> float:
        self.num_passes += 1
        return self.least_gain if children == SELECTED else 0.0


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
    """The C candidates of at most `max_nodes` nodes: plain decoding, chains, then trees.

    Args:
        is_chain_only: the model cannot run trees.
        is_sampled: children may be drawn, so that trees cannot stop by what was drawn: trees of several depths.
    """

    def __init__(self, max_nodes: int, is_chain_only: bool = False, is_sampled: bool = False) -> None:
        chains = [Candidate(k + 1, k, is_chain=True) for k in CHAIN_LENGTHS if k < max_nodes]
        sizes = [size for size in TREE_SIZES if 2 < size < max_nodes] + [max_nodes] * (max_nodes > 2)
        depths = (*(DEPTHS if is_sampled else ()), ANY_DEPTH)
        trees = [Candidate(n, d) for d in depths for n in sizes if d < n - 1 or d == ANY_DEPTH]
        super().__init__([Candidate(1, 0), *chains, *([] if is_chain_only else trees)])
        self.names = [candidate.name for candidate in self]
        self.policies = [candidate.policy() for candidate in self]
        self.num_nodes = np.array([c.num_nodes - 1 for c in self])
        """The nodes below each candidate's root, [C]."""
        self.most_nodes = int(self.num_nodes.max())
        self.chains = slice(1, 1 + len(chains))
        self.chain_lengths = [c.depth for c in self[self.chains]]
        self.trees = slice(1 + len(chains), len(self))
        self.by_depth = dict[int, slice]()
        """The trees by depth, in order of size."""
        for number in range(self.trees.start, len(self)):
            depth = self[number].depth
            self.by_depth[depth] = slice(self.by_depth.get(depth, slice(number, 0)).start, number + 1)
