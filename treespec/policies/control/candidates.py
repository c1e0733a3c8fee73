"""What may be drafted in a step: nothing, a chain, or a best-first tree of some budget and depth."""

from typing import NamedTuple

import numpy as np

from treespec.policies.best_first import CHILD_SHARE, BestFirst
from treespec.policies.chain import Chain
from treespec.protocols import TreePolicy

PLAIN = 0
"""The number of the candidate that drafts nothing."""
CHAIN_LENGTHS = (1, 2, 3, 4, 6)
TREE_SIZES = (4, 8, 12, 16, 24, 32)
ACCELERATOR_SIZE = 64
DEPTHS = (2, 3, 4, 6)
ANY_DEPTH = 1 << 20


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

    def policy(self) -> TreePolicy:
        if self.is_chain:
            return Chain(self.depth)
        depth = None if self.depth == ANY_DEPTH else self.depth
        return BestFirst(self.num_nodes, depth=depth, child_share=CHILD_SHARE)


class Candidates(list[Candidate]):
    """The candidates of at most `max_nodes` nodes, plain decoding first; of chains only for models without trees."""

    def __init__(self, max_nodes: int, is_chain_only: bool = False) -> None:
        chains = [Candidate(k + 1, k, is_chain=True) for k in CHAIN_LENGTHS if k < max_nodes]
        sizes = [size for size in TREE_SIZES if size < max_nodes] + [max_nodes]
        trees = [Candidate(n, d) for n in sizes if n > 2 for d in (*DEPTHS, ANY_DEPTH) if d < n - 1 or d == ANY_DEPTH]
        super().__init__([Candidate(1, 0), *chains, *([] if is_chain_only else trees)])
        self.names = [candidate.name for candidate in self]
        self.policies = [None if c.num_nodes == 1 else c.policy() for c in self]
        self.nodes = np.array([c.num_nodes - 1 for c in self])
        self.depths = np.array([c.depth for c in self])
        self.chains = np.array([c.is_chain for c in self])
        self.most_nodes = int(self.nodes.max())
        self.known = [self._known(run) for run in range(len(self))]
        """By candidate: of which ones a tree that it drafted says what they would have accepted, bool [C].

        It depends on no tree: to learn of large candidates only where little was drafted would underestimate them.
        Chains are always known, see `Acceptance`.
        """

    def inside(self, depths: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        """Which of n nodes in order of falling value each candidate drafts, bool [C, n].

        Args:
            is_first: whether a node and all above it are first children, which are what a chain drafts.
        """
        allowed = (depths <= self.depths[:, None]) & (is_first | ~self.chains[:, None])
        return allowed & (np.cumsum(allowed, 1) <= self.nodes[:, None])

    def _known(self, run: int) -> np.ndarray:
        wanted = self[run]
        is_within = (self.nodes < wanted.num_nodes) & (self.depths <= wanted.depth) & (not wanted.is_chain)
        return is_within | self.chains | (np.arange(len(self)) == run)
