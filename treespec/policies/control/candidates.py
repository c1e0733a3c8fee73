"""What may be drafted in a step: nothing, a chain, or a best-first tree of some budget and depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from treespec.policies.best_first import BestFirst
from treespec.policies.chain import Chain
from treespec.protocols import TreePolicy

if TYPE_CHECKING:
    from treespec.policies.control.acceptance import DraftedTree

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
        return BestFirst(self.num_nodes, depth=None if self.depth == ANY_DEPTH else self.depth)


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

    def inside(self, depths: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        """Which of n nodes in order of falling value each candidate drafts, bool [C, n].

        Args:
            is_first: whether a node and all above it are first children, which are what a chain drafts.
        """
        allowed = (depths <= self.depths[:, None]) & (is_first | ~self.chains[:, None])
        return allowed & (np.cumsum(allowed, 1) <= self.nodes[:, None])

    def known(self, run: int, tree: DraftedTree, path: Sequence[int]) -> np.ndarray:
        """Of which candidates it is known what they would have accepted where number `run` drafted `tree`, bool [C].

        `path` are the tree's nodes that were emitted.
        """
        wanted, num_drafted, deepest = self[run], len(tree.tokens) - 1, max(tree.depths)
        # A tree smaller than its budget and depth allow is what larger candidates would have drafted too.
        is_small = num_drafted < wanted.num_nodes - 1 and not wanted.is_chain
        found = (self.nodes <= num_drafted) | is_small
        found &= (self.depths <= wanted.depth) | (deepest < wanted.depth)
        if wanted.is_chain:
            found &= self.chains
        # A chain is known where it is in the tree, or where the text left it.
        first = [node for node in range(1, num_drafted + 1) if tree.is_first[node]]
        right = sum(tree.is_first[node] for node in path)
        return np.where(self.chains, (self.depths <= len(first)) | (right < len(first)), found)
