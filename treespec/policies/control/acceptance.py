"""What drafts are worth, learned from verified trees only.

A best-first tree holds all smaller ones and the chain of first children, so one verified tree says what each of them
would have emitted. What was not drafted is extrapolated from the acceptance by depth and rank.

The n nodes of a tree are here those below its root.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from treespec.policies.control.candidates import Candidate, Candidates
from treespec.policies.control.times import MOST_NODES
from treespec.policies.heap import grow_best_first

NUM_DEPTHS, NUM_RANKS, NUM_BINS = 6, 6, 8
UNKNOWN, ALL = NUM_BINS, NUM_BINS + 1
"""The bins of nodes without a confidence, and of all nodes."""
_CELLS = NUM_RANKS * (NUM_BINS + 2)
PRIOR_TRIALS = 12.0
MEMORY = 0.995
"""The factor on a cell's counts per trial."""
STEP_MEMORY = 0.985
"""The factor on what candidates have shown per step."""
EXTRAPOLATION_STEPS = 2.0
"""The weight of what acceptance by depth and rank predicts, in steps."""


class DraftedTree(NamedTuple):
    """One row's tree as it was drafted, on the host, the root first.

    `is_first`: whether a node and all above it are first children. `confidences`: the drafter's own estimates that a
    node is accepted if its parent is, -1 where it gave none. `probs` [n]: calibrated estimates that a node's whole path
    is accepted, of the nodes below the root; they never rise along a path.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    ranks: Sequence[int]
    is_first: Sequence[bool]
    confidences: Sequence[float]
    probs: np.ndarray


class Calibration:
    """P(child is accepted | its parent is) by rank and confidence, then by depth too.

    A cell's estimate is (hits + PRIOR_TRIALS x prior) / (trials + PRIOR_TRIALS); the finer cells' prior is the coarser
    one's estimate, and the coarser ones' the confidence itself. Plain lists: a step reads and counts single cells.
    """

    def __init__(self) -> None:
        size = (NUM_DEPTHS + 1) * _CELLS
        self._hits, self._trials = [0.0] * size, [0.0] * size

    def estimate(self, depth: int, rank: int, confidence: float) -> float:
        """Of a child at this depth (1: the root's), the r-th, with the drafter's confidence; below 0: it gave none."""
        prob, coarse = (
            (confidence, _cell(rank, confidence)) if confidence >= 0 else (_prior(rank), _cell(rank, UNKNOWN))
        )
        return self._refine(prob, coarse, depth)

    def record(self, depth: int, rank: int, confidence: float, is_hit: bool) -> None:
        """Count one trial, also in the cells of all confidences."""
        below = min(depth, NUM_DEPTHS) * _CELLS
        for coarse in (_cell(rank, confidence if confidence >= 0 else UNKNOWN), _cell(rank, ALL)):
            for cell in (coarse, below + coarse):
                self._hits[cell] = MEMORY * self._hits[cell] + is_hit
                self._trials[cell] = MEMORY * self._trials[cell] + 1.0

    def table(self) -> list[list[float]]:
        """Acceptance by depth and rank, [NUM_DEPTHS][NUM_RANKS], falling with rank."""
        rows = []
        for depth in range(1, NUM_DEPTHS + 1):
            found = [self._refine(_prior(rank), _cell(rank, ALL), depth) for rank in range(NUM_RANKS)]
            row, total = list(accumulate(found, min)), sum(found)
            rows.append([prob * min(1.0, 0.98 / total) for prob in row])
        return rows

    def _refine(self, prob: float, coarse: int, depth: int) -> float:
        for cell in (coarse, min(depth, NUM_DEPTHS) * _CELLS + coarse):
            prob = (self._hits[cell] + PRIOR_TRIALS * prob) / (self._trials[cell] + PRIOR_TRIALS)
        return prob


def _cell(rank: int, confidence: float) -> int:
    """The number of a coarse cell; `UNKNOWN` and `ALL` stand for no confidence and for all of them."""
    column = int(confidence * NUM_BINS) if confidence < 1 else NUM_BINS - 1 if confidence == 1 else int(confidence)
    return min(rank, NUM_RANKS - 1) * (NUM_BINS + 2) + column


def _prior(rank: int) -> float:
    return 0.5 * 0.35**rank


class Acceptance:
    """Expected accepted tokens, verified nodes and draft levels of every candidate."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self.calibration = Calibration()
        self._sums = np.zeros((3, len(candidates)))
        """Accepted tokens, verified nodes below the root and levels, summed over steps, older ones less."""
        self._weights = np.zeros(len(candidates))
        self._ratio = [1.0, 1.0]
        self._prior, self._age = self._extrapolate(), 0

    def expected(self) -> np.ndarray:
        """Accepted tokens, nodes below the root and levels, [3, C]."""
        prior = self._prior * np.array([[self._ratio[0] / self._ratio[1]], [1.0], [1.0]])
        return (self._sums + EXTRAPOLATION_STEPS * prior) / (self._weights + EXTRAPOLATION_STEPS)

    def read(self, tokens: Sequence[int], parents: Sequence[int], values: Sequence[float] | None) -> DraftedTree:
        """A row's tree with calibrated probabilities; `values` are its own estimates of paths."""
        depths, ranks, children = [0] * len(tokens), [0] * len(tokens), [0] * len(tokens)
        confidences, is_first = [-1.0] * len(tokens), [True] * len(tokens)
        for node in range(1, len(tokens)):
            above = parents[node]
            depths[node], ranks[node] = depths[above] + 1, children[above]
            children[above] += 1
            is_first[node] = is_first[above] and ranks[node] == 0
            if values is not None:
                confidences[node] = min(max(values[node] / values[above], 0.0), 1.0) if values[above] > 0 else 0.0
        probs, estimate = [1.0], self.calibration.estimate
        for node in range(1, len(tokens)):
            probs.append(probs[parents[node]] * estimate(depths[node], ranks[node], confidences[node]))
        return DraftedTree(tokens, parents, depths, ranks, is_first, confidences, np.array(probs[1:]))

    def forget(self) -> None:
        """One step has passed."""
        self._sums *= STEP_MEMORY
        self._weights *= STEP_MEMORY

    def learn(self, tree: DraftedTree, emitted: Sequence[int], run: int, loss: float, curve: np.ndarray) -> None:
        """Learn from the tokens emitted after a tree's root, which candidate number `run` drafted.

        Args:
            loss: accepted tokens per row that a millisecond is worth; 0 where trees are not trimmed.
            curve: milliseconds by nodes, see `PassTimes.curve`.
        """
        path = self._record(tree, emitted)
        shown = self._replay(tree, path, loss, curve)
        self._complete_chains(shown[0], tree, path, self._candidates[run])
        known = self._candidates.known[run]
        self._sums[:, known] += shown[:, known]
        self._weights[known] += 1
        self._ratio[0] = STEP_MEMORY * self._ratio[0] + shown[0, run]
        self._ratio[1] = STEP_MEMORY * self._ratio[1] + self._prior[0, run]
        self._age += 1
        if self._age % 16 == 0:
            self._prior = self._extrapolate()

    def _record(self, tree: DraftedTree, emitted: Sequence[int]) -> list[int]:
        """Count every child whose parent was accepted; returns the nodes on the emitted path."""
        path, node = [], 0
        for token in emitted:
            children = [child for child in range(node + 1, len(tree.tokens)) if tree.parents[child] == node]
            right = next((child for child in children if tree.tokens[child] == token), None)
            for child in children:
                self.calibration.record(tree.depths[child], tree.ranks[child], tree.confidences[child], child == right)
            if right is None:
                break
            path.append(right)
            node = right
        return path

    def _replay(self, tree: DraftedTree, path: Sequence[int], loss: float, curve: np.ndarray) -> np.ndarray:
        """Accepted tokens, verified nodes and levels of every candidate on this tree, [3, C]."""
        order = np.argsort(-tree.probs, kind="stable")
        if not len(order):
            return np.zeros((3, len(self._candidates)))
        probs, depths = tree.probs[order], np.array(tree.depths[1:])[order]
        inside = self._candidates.inside(depths, np.array(tree.is_first[1:])[order])
        is_right = np.zeros(len(order) + 1, dtype=bool)
        is_right[list(path)] = True
        nodes, right = np.cumsum(inside, 1), np.cumsum(inside & is_right[order + 1], 1)
        rows, last = np.arange(len(nodes)), np.full(len(nodes), len(order) - 1)
        levels = np.where(inside, depths, 0).max(1)
        if loss > 0:
            profit = np.cumsum(inside * probs, 1) - loss * (curve[np.minimum(1 + nodes, MOST_NODES)] - curve[1])
            last = profit.argmax(1)
            inside &= profit[rows, last, None] > 0
        is_any = inside.any(1)
        return np.array([right[rows, last] * is_any, nodes[rows, last] * is_any, levels])

    def _complete_chains(self, accepted: np.ndarray, tree: DraftedTree, path: Sequence[int], run: Candidate) -> None:
        """Add to chains longer than what was drafted, where all of that was right, what they would probably accept."""
        length = sum(tree.is_first) - 1
        is_cut = length == run.depth or len(tree.tokens) == run.num_nodes
        if is_cut and sum(tree.is_first[node] for node in path) == length:
            for number in np.flatnonzero(self._candidates.chains & (self._candidates.depths > length)):
                below = self._first[length + 1 : self._candidates[number].depth + 1]
                accepted[number] += below.sum() / self._first[length]

    def _extrapolate(self) -> np.ndarray:
        """Accepted tokens, nodes and levels of every candidate if acceptance depended on depth and rank alone."""
        table = self.calibration.table()
        self._first = np.cumprod([1.0, *(row[0] for row in table)])

        def children_of(depth: int) -> list[tuple[float, int, int]]:
            return [(prob, rank, depth + 1) for rank, prob in enumerate(table[min(depth, NUM_DEPTHS - 1)])]

        most = self._candidates.most_nodes
        tree = grow_best_first(0, 0, children_of, 2 * most, most)
        depths, is_first = [0], [True]
        for rank, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
            depths.append(depths[parent] + 1)
            is_first.append(is_first[parent] and rank == 0)
        below = np.array(depths[1:], dtype=int)
        inside = self._candidates.inside(below, np.array(is_first[1:], dtype=bool))
        values = np.where(inside, np.array(tree.values[1:]), 0).sum(1)
        return np.array([values, inside.sum(1), np.where(inside, below, 0).max(1, initial=0)])
