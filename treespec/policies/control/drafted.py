"""What is expected of a batch of drafted trees: the drafter's confidences, corrected by what became of earlier ones.

Axis letters: B rows, N nodes of a row, the root's first, padding last; M nodes below the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.tree import PADDING_PARENT, TreeBatch

NUM_DEPTHS, NUM_RANKS = 6, 6
BIN_EDGES = np.array([0.0, 0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99])
"""Of confidences; narrow where a small difference matters along a path. Below the first: no confidence."""
NUM_BINS = len(BIN_EDGES) + 1
NUM_CELLS = NUM_RANKS * NUM_BINS
PRIOR_TRIALS = 64.0
"""What a coarser cell's estimate counts for in a finer cell."""
TRUST = 8.0
"""Accepted children that a drafter's own confidences count for against what was accepted of all its children."""
MEMORY = 0.997
"""The factor on a cell's counts per trial."""


def prior_acceptance(ranks: Int[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Of a child by rank, where the drafter says nothing."""
    return 0.5 * 0.35**ranks


class DraftedTrees:
    """The trees of a step as they were drafted.

    Attributes:
        depths, ranks: int [B, N]; a node's rank is its number among its siblings.
        is_first: bool [B, N]: below the root, on the path of first children.
        cells: int [B, N], of a `ConfidenceTable`.
        confidences: float [B, N], the drafter's estimates that a node is accepted if its parent is, -1 where it gave none.
        num_nodes: int [B], below the root.
    """

    def __init__(self, trees: TreeBatch) -> None:
        self._tokens, self._parents = trees.tokens.numpy(), trees.parents.numpy()
        self._is_node = self._parents != PADDING_PARENT
        self._is_node[:, 0] = False
        self.num_nodes = self._is_node.sum(1)
        self._rows = np.arange(len(self._tokens))
        self._above = np.maximum(self._parents, 0)
        siblings = (self._parents[:, :, None] == self._parents[:, None, :]) & _earlier(self._tokens.shape[1])
        self.ranks = siblings.sum(2)
        self.depths = self._along_paths(self._is_node.astype(np.int64), np.add)
        self.is_first = self._along_paths(self.ranks == 0, np.logical_and) & self._is_node
        self.confidences = np.full(self._tokens.shape, -1.0)
        if trees.values is not None:
            values = trees.values.numpy().astype(np.float64)
            above = np.take_along_axis(values, self._above, 1)
            self.confidences = np.clip(np.divide(values, above, out=np.ones_like(values), where=above > 0), 0.0, 1.0)
        coarse = np.minimum(self.ranks, NUM_RANKS - 1) * NUM_BINS + np.searchsorted(BIN_EDGES, self.confidences, "right")
        self.cells = np.minimum(self.depths, NUM_DEPTHS) * NUM_CELLS + coarse
        self.path_probs = np.ones(self._tokens.shape)
        """Estimates that a node's whole path is accepted, never rising along a path; 0 for padding."""

    def set_probs(self, probs: Float[np.ndarray, "B N"]) -> None:
        """From estimates that a node is accepted if its parent is, 1 for the root."""
        self.path_probs = self._along_paths(np.where(self._is_node, probs, 1.0), np.multiply)
        self.path_probs[~self._is_node] = 0.0

    @cached_property
    def order(self) -> Int[np.ndarray, "B M"]:
        """The nodes below the root by falling probability, then padding."""
        return 1 + np.argsort(-self.path_probs[:, 1:], axis=1, kind="stable")

    def outcomes(self, emitted: Sequence[Sequence[int]]) -> tuple[Bool[np.ndarray, "B N"], Bool[np.ndarray, "B N"]]:
        """The nodes whose parent was right (the root is), and those of them that were right themselves."""
        tried, right = np.zeros_like(self._is_node), np.zeros_like(self._is_node)
        node = np.zeros_like(self._rows)
        for column in range(max(map(len, emitted))):
            tokens = np.array([row[column] if column < len(row) else -1 for row in emitted])
            children = (self._parents == node[:, None]) & (tokens >= 0)[:, None]
            matches = children & (self._tokens == tokens[:, None])
            tried |= children
            node = np.where(matches.any(1), matches.argmax(1), -3)  # No node has this parent.
            right[self._rows[node >= 0], node[node >= 0]] = True
            if (node < 0).all():
                break
        return tried, right

    def _along_paths(self, values: np.ndarray, combine: np.ufunc) -> np.ndarray:
        """Of every node the values of its path combined, the root's too, by jumps of 1, 2, 4, ... nodes."""
        jumps = self._above
        while True:
            values = combine(values, np.take_along_axis(values, jumps, 1))
            if not jumps.any():
                return values
            jumps = np.take_along_axis(jumps, jumps, 1)


class ConfidenceTable:
    """How often children were right, by rank, confidence and depth; few outcomes count little.

    A cell's estimate is pulled to the one of all depths, this to the drafter's confidence, and that is multiplied by
    how many children were right of those that the drafter's confidences predicted: of first children, and of others.
    """

    def __init__(self) -> None:
        self._sums = np.zeros((3, (NUM_DEPTHS + 1) * NUM_CELLS))
        """Right children, tried ones, and the sum of their confidences, by cell; older ones count less."""
        self._fit()

    def estimates(self, drafted: DraftedTrees) -> Float[np.ndarray, "B N"]:
        """That a node is accepted if its parent is; anything for the root and for padding."""
        cells = drafted.cells
        return np.minimum(self._constants[cells] + self._slopes[cells] * _claims(drafted), 1.0)

    def update(self, drafted: DraftedTrees, tried: Bool[np.ndarray, "B N"], right: Bool[np.ndarray, "B N"]) -> None:
        """Count the nodes that were tried; see `DraftedTrees.outcomes`."""
        cells, size = drafted.cells[tried], self._sums.shape[1]
        counts = np.bincount(cells, minlength=size)
        hits = np.bincount(cells, weights=right[tried], minlength=size)
        claims = np.bincount(cells, weights=_claims(drafted)[tried], minlength=size)
        self._sums *= MEMORY**counts
        self._sums += (hits, counts, claims)
        self._fit()

    def _fit(self) -> None:
        """A cell's estimate is a constant and a slope times the confidence."""
        hits, trials, claims = self._sums.reshape(3, NUM_DEPTHS + 1, NUM_RANKS, NUM_BINS).sum(1)
        scales = np.empty((NUM_RANKS, 1))
        for ranks in (slice(0, 1), slice(1, None)):
            scales[ranks] = (hits[ranks].sum() + TRUST) / (claims[ranks].sum() + TRUST)
        weight = PRIOR_TRIALS / (trials + PRIOR_TRIALS)
        constants, slopes = (hits / PRIOR_TRIALS * weight).ravel(), (scales * weight).ravel()
        fine = PRIOR_TRIALS / (self._sums[1] + PRIOR_TRIALS)
        self._constants = self._sums[0] / PRIOR_TRIALS * fine + fine * np.tile(constants, NUM_DEPTHS + 1)
        self._slopes = fine * np.tile(slopes, NUM_DEPTHS + 1)


def _claims(drafted: DraftedTrees) -> Float[np.ndarray, "B N"]:
    """The drafter's confidences, guessed where it gave none."""
    return np.where(drafted.confidences < 0, prior_acceptance(drafted.ranks), drafted.confidences)


def _earlier(num_nodes: int) -> Bool[np.ndarray, "N N"]:
    return np.tri(num_nodes, k=-1, dtype=np.bool_)
