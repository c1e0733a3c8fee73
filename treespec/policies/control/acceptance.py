"""What drafts are worth, learned from verified trees only.

A best-first tree holds all smaller ones and the chain of first children, so one verified tree says what each of them
would have gained, and its least probable nodes what a larger tree would add.

Axis letters: c some of the candidates, n nodes of a tree below its root, t numbers of nodes in a curve of times.
"""

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from treespec.policies.calibration import Calibration
from treespec.policies.control.candidates import CHAIN_LENGTHS, Candidate, Candidates
from treespec.policies.heap import grow_best_first
from treespec.tree import HostTree, TokenTree

NUM_DEPTHS, NUM_RANKS = 6, 6
BIN_EDGES = (0.0, 0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99)
"""Of confidences; narrow where a small difference matters along a path. Below the first: no confidence."""
NUM_BINS = len(BIN_EDGES) + 1
PRIOR_TRIALS = 64.0
MEMORY = 0.997
"""The factor on a calibration's counts per trial."""
STEP_MEMORY = 0.985
"""The factor on what candidates have shown per drafted step."""
PRIOR_PASSES = 2
"""Draft passes of trees: few, as they stop where passes do not pay."""
PRIOR_STEPS = 2.0
"""The weight of what acceptance by depth and rank predicts, in steps."""
DEEPER_SHARE = 0.7
"""The most of a level's gain that a deeper one is expected to have."""
DEEPEST = 8
SEEN_SHARE = 0.75
"""What a step shows is a mean of what was accepted, with this weight, and of what was expected, which is less noisy."""


class DraftedTree(NamedTuple):
    """One row's tree as it was drafted, with what is expected of it.

    `confidences`: the drafter's own estimates by node that it is accepted if its parent is, -1 where it gave none.
    `path_probs`: calibrated estimates by node that its whole path is accepted; they never rise along a path. `order`
    [n]: the nodes below the root by falling probability, `probs` [n]: these probabilities.
    """

    tree: TokenTree
    confidences: Sequence[float]
    path_probs: Sequence[float]
    probs: Float[np.ndarray, "n"]
    order: Int[np.ndarray, "n"]

    @property
    def first_children(self) -> list[int]:
        """The path of first children below the root."""
        node, path = 0, list[int]()
        while children := self.tree.children_lists[node]:
            node = children[0]
            path.append(node)
        return path


class Acceptance:
    """Expected accepted tokens, verified nodes and draft passes of every candidate."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._calibration = Calibration(PRIOR_TRIALS, MEMORY)
        self._prior = PRIOR_STEPS * _prior_expectation(candidates)
        self._sums = np.zeros((3, len(candidates)))
        """Accepted tokens, verified nodes below the root and passes, summed over steps, older ones less."""
        self._weights = np.zeros(len(candidates))

    def expected(self) -> Float[np.ndarray, "3 C"]:
        """Accepted tokens, nodes below the root and draft passes."""
        return (self._sums + self._prior) / (self._weights + PRIOR_STEPS)

    def read(self, tree: TokenTree, values: Sequence[float] | None) -> DraftedTree:
        """A row's tree with calibrated probabilities; `values` are its own estimates of paths."""
        estimate, confidences = self._calibration.estimate, _confidences(tree, values)
        probs, num_children = [1.0], [0] * tree.num_nodes
        nodes = zip(tree.parent_list, tree.depths, confidences, strict=True)
        next(nodes)
        for parent, depth, confidence in nodes:
            rank = num_children[parent]
            num_children[parent] = rank + 1
            prior = confidence if confidence >= 0 else _prior(rank)
            probs.append(probs[parent] * estimate(prior, _cells(depth, rank, confidence)))
        by_node = np.array(probs[1:])
        order = np.argsort(-by_node, kind="stable")
        return DraftedTree(tree, confidences, probs, by_node[order], 1 + order)

    def update(
        self,
        drafted: DraftedTree,
        emitted: Sequence[int],
        chosen: int,
        num_passes: int,
        curve: Float[np.ndarray, "t"],
        loss: float,
    ) -> None:
        """Learn from the tokens emitted after a tree's root.

        Args:
            chosen: the number of the candidate that drafted it.
            num_passes: draft passes.
            curve: milliseconds by nodes, see `PassTimes.curve`.
            loss: accepted tokens per row that a millisecond is worth; 0 where trees are not trimmed.
        """
        right = self._calibrate(drafted, emitted)
        candidates, candidate = self._candidates, self._candidates[chosen]
        is_full = drafted.tree.num_nodes >= candidate.num_nodes
        shown = np.zeros_like(self._sums)
        shown[:, candidates.chains] = self._of_chains(drafted, right, is_full or candidate.is_chain)
        if not candidate.is_chain:
            step = _Step(drafted, right, candidate, num_passes, is_full)
            for depth, trees in candidates.by_depth.items():
                shown[:, trees] = step.of_trees(candidates.num_nodes[trees], depth, curve, loss)
        known = candidates.chains if candidate.is_chain else slice(1, None)
        self._sums *= STEP_MEMORY
        self._weights *= STEP_MEMORY
        self._sums[:, known] += shown[:, known]
        self._weights[known] += 1

    def _of_chains(self, drafted: DraftedTree, right: Sequence[int], is_cut: bool) -> Float[np.ndarray, "3 c"]:
        """Of the chain of first children by length; one that was cut goes on as it ended."""
        chain = drafted.first_children
        probs = [drafted.path_probs[node] for node in chain]
        gains = [
            SEEN_SHARE * (node in right) + (1 - SEEN_SHARE) * prob for node, prob in zip(chain, probs, strict=True)
        ]
        while is_cut and probs and len(gains) < CHAIN_LENGTHS[-1]:
            share = probs[-1] / probs[-2] if len(probs) > 1 else probs[-1]
            gains.append(gains[-1] * share)
        sums = [0.0, *accumulate(gains)]
        nodes = [min(length, len(gains)) for length in self._candidates.chain_lengths]
        return np.array([[sums[length] for length in nodes], nodes, nodes])

    def _calibrate(self, drafted: DraftedTree, emitted: Sequence[int]) -> list[int]:
        """Count every child whose parent was right, also those that were cut off: the right nodes."""
        tree, depths, node, path = drafted.tree, drafted.tree.depths, 0, list[int]()
        for token in emitted:
            right = None
            for rank, child in enumerate(tree.children_lists[node]):
                is_right = right is None and tree.token_list[child] == token
                right = child if is_right else right
                self._calibration.update(is_right, _cells(depths[child], rank, drafted.confidences[child]))
            if right is None:
                break
            node = right
            path.append(node)
        return path


class _Step:
    """What one drafted tree says of the best-first trees of all sizes and depths."""

    def __init__(
        self, drafted: DraftedTree, right: Sequence[int], candidate: Candidate, num_passes: int, is_full: bool
    ) -> None:
        self._drafted, self._candidate, self._num_passes, self._is_full = drafted, candidate, num_passes, is_full
        self._gains = (1 - SEEN_SHARE) * drafted.probs
        order = drafted.order.tolist()
        for node in right:
            self._gains[order.index(node)] += SEEN_SHARE

    def of_trees(
        self, sizes: Int[np.ndarray, "c"], depth: int, curve: Float[np.ndarray, "t"], loss: float
    ) -> Float[np.ndarray, "3 c"]:
        """Accepted tokens, verified nodes and draft passes of trees of at most `sizes` nodes below the root."""
        probs, gains, more, num_passes = self._drafted.probs, self._gains, 0.0, min(self._num_passes, depth)
        if depth < self._candidate.depth:
            is_inside = self._depths() <= depth
            probs, gains = probs[is_inside], gains[is_inside]
        elif depth > self._candidate.depth:
            more = self._deeper(min(depth, DEEPEST) - self._candidate.depth)
            num_passes = min(depth, DEEPEST)
        most = int(sizes[-1])
        probs, gains = probs[:most], gains[:most]
        if self._is_full and 0 < len(probs) < most:  # The j-th best is taken to be n / j as probable as the n-th.
            further = probs[-1] * len(probs) / np.arange(len(probs) + 1, most + 1)
            probs, gains = np.concatenate([probs, further]), np.concatenate([gains, further])
        kept = len(probs)
        if loss > 0 and kept:
            profit = probs.cumsum() - loss * (curve[2 : kept + 2] - curve[1])
            best = int(profit.argmax())
            kept = best + 1 if profit[best] > 0 else 0
        nodes = np.minimum(sizes, kept)
        sums = np.zeros(len(gains) + 1)
        gains.cumsum(out=sums[1:])
        return np.array([sums[nodes] + more, nodes, np.minimum(num_passes, sizes)])

    def _deeper(self, num_levels: int) -> float:
        """What more levels would gain below a tree that was not to go deeper: less and less, as its last ones did."""
        depths, depth = self._depths(), self._candidate.depth
        last, before = (float(self._gains[depths == at].sum()) for at in (depth, depth - 1))
        share = min(last / before, DEEPER_SHARE) if before > 0 else 0.0
        return last * sum(share**level for level in range(1, num_levels + 1))

    def _depths(self) -> Int[np.ndarray, "n"]:
        return np.array(self._drafted.tree.depths)[self._drafted.order]


def _confidences(tree: TokenTree, values: Sequence[float] | None) -> Sequence[float]:
    """See `DraftedTree`."""
    if values is None:
        return [-1.0] * tree.num_nodes
    return HostTree(tree.token_list, tree.parent_list, list(values)).confidences()


def _cells(depth: int, rank: int, confidence: float) -> tuple[int, int]:
    """The cells of a child: by rank and confidence; then by depth too."""
    coarse = min(rank, NUM_RANKS - 1) * NUM_BINS + bisect(BIN_EDGES, confidence)
    return coarse, (min(depth, NUM_DEPTHS) * NUM_RANKS * NUM_BINS) + coarse


def _prior(rank: int) -> float:
    return 0.5 * 0.35**rank


def _prior_expectation(candidates: Candidates) -> Float[np.ndarray, "3 C"]:
    """Accepted tokens, nodes and passes of every candidate if acceptance depended on the rank alone."""
    children = [(_prior(rank), rank, None) for rank in range(NUM_RANKS)]
    found = np.zeros((3, len(candidates)))
    for number, candidate in enumerate(candidates):
        if candidate.is_chain:
            found[:, number] = 1 - 0.5**candidate.depth, candidate.depth, candidate.depth
        elif candidate.num_nodes > 1:
            tree = grow_best_first(0, None, lambda _: children, candidate.num_nodes, candidate.depth)
            nodes = len(tree.tokens) - 1
            found[:, number] = sum(tree.values) - 1, nodes, min(candidate.depth, PRIOR_PASSES)
    return found
