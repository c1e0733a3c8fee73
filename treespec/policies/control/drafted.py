"""What is expected of a batch of drafted trees: the drafter's confidences, corrected by what became of earlier ones.

Axis letters: n nodes of a row below its root.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped

from treespec.tree import TreeBatch

NUM_DEPTHS, NUM_RANKS = 6, 6
BIN_EDGES = np.array([0.0, 0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99])
"""Bins of confidences, narrow where a small difference matters along a path. Below the first: no confidence."""
NUM_BINS = len(BIN_EDGES) + 1
NUM_CELLS = NUM_RANKS * NUM_BINS
PRIOR_TRIALS = 64.0
"""What a coarser cell's estimate counts for in a finer cell."""
TRUST = 8.0
"""Accepted children that a drafter's own confidences count for against what was accepted of all its children."""
MEMORY = 0.997
"""The factor on a cell's counts per trial."""
FIRST_STEPS, RENEWED_EVERY = 16, 4
"""Estimates are made again after each of the first steps, and then once in this many."""


def prior_acceptance(ranks: Int[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """A child's assumed confidence by rank, where the drafter gives none."""
    return 0.5 * 0.35**ranks


class DraftedTrees:
    """The trees of a step as they were drafted.

    Attributes:
        depths, ranks: int [B, N]; a node's rank is its number among its siblings.
        cells: int [B, N], of a `ConfidenceTable`.
        claims: float [B, N], the drafter's confidences: that a node is accepted if its parent is; guessed by rank where
            it gave none.
        num_nodes: int [B], below the root.
        path_probs: float [B, N], estimates that a node's whole path is accepted, never rising along a path; 0 for
            the root and padding. `estimate` makes them.
        order: int [B, n], the nodes below the root by falling probability, then padding; `probs` [B, n], theirs.
    """

    def __init__(self, trees: TreeBatch) -> None:
        parents = trees.parents.numpy()
        num_rows, width = parents.shape
        self.starts = width * np.arange(num_rows)[:, None]
        """The arrays of all rows, flat."""
        self._trees, self._parents = trees, parents.tolist()
        self.num_nodes = (parents >= 0).sum(1)
        depths, ranks, self._children = zip(*map(_structure, self._parents), strict=True)
        self.depths, self.ranks = np.array(depths), np.array(ranks)
        self.cells = np.minimum(self.depths, NUM_DEPTHS) * NUM_CELLS + np.minimum(self.ranks, NUM_RANKS - 1) * NUM_BINS
        if trees.values is None:
            self.claims = prior_acceptance(self.ranks)
        else:
            values = trees.values.numpy()
            above = values.take(np.maximum(parents, 0) + self.starts)
            self.claims = np.minimum(np.divide(values, above, out=np.ones_like(values), where=above > 0), 1.0)
            self.cells += BIN_EDGES.searchsorted(self.claims, "right")
        self.path_probs = self.probs = np.zeros(parents.shape)
        self.order = np.zeros((num_rows, width - 1), np.int64)

    def estimate(self, probs: Float[np.ndarray, "B N"]) -> None:
        """Take these estimates that a node is accepted if its parent is; anything for the root and for padding."""
        self.path_probs = np.array([_along_paths(*row) for row in zip(self._parents, probs.tolist(), strict=True)])
        self.order = 1 + (-self.path_probs[:, 1:]).argsort(1, kind="stable")
        self.probs = self.by_order(self.path_probs)

    def by_order(self, values: Shaped[np.ndarray, "B N"]) -> Shaped[np.ndarray, "B n"]:
        return values.take(self.order + self.starts)

    def outcomes(self, emitted: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[list[int]]]:
        """Nodes as flat indices: children of right nodes (the root is one), which of them were right, and by row the
        path of first children."""
        tried, right, chains = list[int](), list[int](), list[list[int]]()
        arrays = (self._trees.tokens.tolist(), self._children, self.starts[:, 0].tolist())
        for tokens, children, start, texts in zip(*arrays, emitted, strict=True):
            node = 0
            for token in texts:
                below = children[node]
                tried += [start + child for child in below]
                node = next((child for child in below if tokens[child] == token), None)
                if node is None:
                    break
                right.append(start + node)
            chains.append([])
            below = children[0]
            while below:
                chains[-1].append(start + below[0])
                below = children[below[0]]
        return tried, right, chains


# Lists of Python, as a tree has few nodes, and what starts a numpy function would count more.


def _structure(parents: list[int]) -> tuple[list[int], list[int], list[list[int]]]:
    """The nodes' depths and numbers among siblings, 0 for the root and for padding, and their children."""
    depths: list[int] = []
    ranks: list[int] = []
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        is_child = parent >= 0
        depths.append(depths[parent] + 1 if is_child else 0)
        ranks.append(len(children[parent]) if is_child else 0)
        if is_child:
            children[parent].append(node)
    return depths, ranks, children


def _along_paths(parents: list[int], probs: list[float]) -> list[float]:
    """The product along every node's path; 0 for the root and for padding."""
    found = [1.0]
    for parent, prob in zip(parents[1:], probs[1:], strict=True):
        found.append(found[parent] * prob if parent >= 0 else 0.0)
    found[0] = 0.0
    return found


class ConfidenceTable:
    """How often children were right, by rank, confidence and depth; few outcomes count little.

    A cell's estimate is pulled to the one of all depths, this to the drafter's confidence, and that is multiplied by
    how many children were right of those that the drafter's confidences predicted: of first children, and of others.
    """

    def __init__(self) -> None:
        self._sums = np.zeros((3, (NUM_DEPTHS + 1) * NUM_CELLS))
        """Right children, tried ones, and the sum of their confidences, by cell; older ones count less."""
        self._num_steps = 0
        self._fit()

    def estimates(self, drafted: DraftedTrees) -> Float[np.ndarray, "B N"]:
        """That a node is accepted if its parent is; anything for the root and for padding."""
        cells = drafted.cells
        return np.minimum(self._constants.take(cells) + self._slopes.take(cells) * drafted.claims, 1.0)

    def update(self, drafted: DraftedTrees, tried: Sequence[int], right: Sequence[int]) -> None:
        """Count the nodes that were tried; see `DraftedTrees.outcomes`."""
        cells = drafted.cells.take(tried)
        for sums in self._sums:
            np.multiply.at(sums, cells, MEMORY)
        np.add.at(self._sums[0], drafted.cells.take(right), 1.0)
        np.add.at(self._sums[1], cells, 1.0)
        np.add.at(self._sums[2], cells, drafted.claims.take(tried))
        self._num_steps += 1
        if self._num_steps <= FIRST_STEPS or self._num_steps % RENEWED_EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        """A cell's estimate is a constant and a slope times the confidence."""
        fine = self._sums.reshape(3, NUM_DEPTHS + 1, NUM_RANKS, NUM_BINS)
        coarse = fine.sum(1)
        (first, _, first_claims), (hits, _, claims) = coarse[:, 0].sum(1), coarse[:, 1:].sum((1, 2))
        scales = np.full((NUM_RANKS, 1), (hits + TRUST) / (claims + TRUST))
        scales[0] = (first + TRUST) / (first_claims + TRUST)
        weights, coarse_weights = (PRIOR_TRIALS / (sums[1] + PRIOR_TRIALS) for sums in (fine, coarse))
        constants = weights * (fine[0] / PRIOR_TRIALS + coarse_weights * coarse[0] / PRIOR_TRIALS)
        self._constants, self._slopes = constants.ravel(), (weights * coarse_weights * scales).ravel()
