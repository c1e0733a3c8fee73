"""What drafts are worth, learned from verified trees only.

A best-first tree holds all smaller ones and the chain of first children, so one verified tree says what each of them
would have gained, and the least of its nodes what a larger one would add.

The n nodes of a tree are here those below its root, in order of falling probability.
"""

from bisect import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from treespec.policies.calibration import Calibration
from treespec.policies.control.candidates import CHAIN_LENGTHS, Candidates
from treespec.policies.heap import grow_best_first
from treespec.tree import HostTree, TokenTree

NUM_DEPTHS, NUM_RANKS = 6, 6
BIN_EDGES = (0.0, 0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99)
"""Of confidences; narrow where a small difference matters along a path. Below the first: no confidence."""
NUM_BINS = len(BIN_EDGES) + 1
PRIOR_TRIALS = 12.0
MEMORY = 0.995
"""The factor on a calibration's counts per trial."""
STEP_MEMORY = 0.985
"""The factor on what candidates have shown per step."""
PRIOR_STEPS = 2.0
"""The weight of what acceptance by depth and rank predicts, in steps."""
RATIO_TOKENS = 8.0
"""The weight of the prior that as much is accepted as was expected, in tokens."""


class DraftedTree(NamedTuple):
    """One row's tree as it was drafted, with what is expected of it.

    `confidences`: the drafter's own estimates by node that it is accepted if its parent is, -1 where it gave none.
    `probs` [n]: calibrated estimates that a node's whole path is accepted; they never rise along a path. `order` [n]:
    the nodes by falling probability.
    """

    tree: TokenTree
    confidences: Sequence[float]
    probs: Float[np.ndarray, "n"]
    order: Int[np.ndarray, "n"]

    def depths(self) -> Int[np.ndarray, "n"]:
        return np.array(self.tree.depths)[self.order]

    def chain_probs(self, probs: Sequence[float]) -> list[float]:
        """Path probabilities along first children, given those by node."""
        node, found = 0, []
        while children := self.tree.children_lists[node]:
            node = children[0]
            found.append(probs[node])
        return found


class Acceptance:
    """Expected accepted tokens, verified nodes and draft passes of every candidate."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._calibration = Calibration(PRIOR_TRIALS, MEMORY)
        self._prior = PRIOR_STEPS * _prior_expectation(candidates)
        self._sums = np.zeros((3, len(candidates)))
        """Accepted tokens, verified nodes below the root and passes, summed over steps, older ones less."""
        self._weights = np.zeros(len(candidates))
        self._last = np.zeros_like(self._sums)
        """Of the last step."""
        self._num_accepted = self._num_expected = RATIO_TOKENS

    def expected(self) -> Float[np.ndarray, "3 C"]:
        """Accepted tokens, nodes below the root and draft passes."""
        values = (self._sums + self._prior) / (self._weights + PRIOR_STEPS)
        values[0] *= self._num_accepted / self._num_expected
        return values

    def read(self, tree: TokenTree, values: Sequence[float] | None) -> DraftedTree:
        """A row's tree with calibrated probabilities; `values` are its own estimates of paths."""
        estimate, depths = self._calibration.estimate, tree.depths
        confidences = self._confidences(tree, values)
        probs = [1.0] * tree.num_nodes
        for parent, children in enumerate(tree.children_lists):
            for rank, node in enumerate(children):
                confidence = confidences[node]
                prior = confidence if confidence >= 0 else _prior(rank)
                probs[node] = probs[parent] * estimate(prior, _cells(depths[node], rank, confidence))
        by_node = np.array(probs[1:])
        order = np.argsort(-by_node, kind="stable")
        return DraftedTree(tree, confidences, by_node[order], 1 + order)

    def forget(self) -> None:
        """One step has passed."""
        self._sums *= STEP_MEMORY
        self._weights *= STEP_MEMORY

    def update(
        self,
        drafted: DraftedTree,
        emitted: Sequence[int],
        chosen: int,
        num_passes: int,
        curve: Float[np.ndarray, "N"],
        loss: float,
    ) -> None:
        """Learn from the tokens emitted after a tree's root.

        Args:
            chosen: the number of the candidate that drafted it.
            num_passes: draft passes.
            curve: milliseconds by nodes, see `PassTimes.curve`.
            loss: accepted tokens per row that a millisecond is worth; 0 where trees are not trimmed.
        """
        self._calibrate(drafted, emitted)
        candidates, candidate = self._candidates, self._candidates[chosen]
        is_full = drafted.tree.num_nodes >= candidate.num_nodes
        self._add(candidates.chains, self._of_chains(drafted, is_full or candidate.is_chain))
        if not candidate.is_chain:
            for depth, numbers in candidates.by_depth.items():
                if depth <= candidate.depth:
                    probs = drafted.probs if depth == candidate.depth else drafted.probs[drafted.depths() <= depth]
                    sizes = candidates.num_nodes[numbers]
                    gains, nodes = _of_trees(probs, sizes, is_full, curve, loss)
                    self._add(numbers, np.array([gains, nodes, np.minimum(min(num_passes, depth), sizes)]))
        self._num_accepted = STEP_MEMORY * self._num_accepted + len(emitted) - 1
        self._num_expected = STEP_MEMORY * self._num_expected + self._last[0, chosen]

    def _add(self, numbers: slice | Int[np.ndarray, "M"], shown: Float[np.ndarray, "3 M"]) -> None:
        """Count what a step has shown of some candidates."""
        self._last[:, numbers] = shown
        self._sums[:, numbers] += shown
        self._weights[numbers] += 1

    def _of_chains(self, drafted: DraftedTree, is_cut: bool) -> Float[np.ndarray, "3 M"]:
        """Of the chain of first children by length; one that was cut goes on as it ended."""
        lengths, probs = self._candidates.chain_lengths, drafted.chain_probs()
        while is_cut and probs and len(probs) < CHAIN_LENGTHS[-1]:
            probs.append(probs[-1] * (probs[-1] / probs[-2] if len(probs) > 1 else probs[-1]))
        sums = np.cumsum([0.0, *probs])
        nodes = np.minimum(lengths, len(probs))
        return np.array([sums[nodes], nodes, nodes])

    def _calibrate(self, drafted: DraftedTree, emitted: Sequence[int]) -> None:
        """Count every child whose parent was accepted, those that were cut off before verification too."""
        tree, depths, node = drafted.tree, drafted.tree.depths, 0
        for token in emitted:
            right = None
            for rank, child in enumerate(tree.children_lists[node]):
                is_right = right is None and tree.token_list[child] == token
                right = child if is_right else right
                self._calibration.record(is_right, _cells(depths[child], rank, drafted.confidences[child]))
            if right is None:
                return
            node = right


def _of_trees(
    probs: Float[np.ndarray, "n"], sizes: Int[np.ndarray, "M"], is_full: bool, curve: np.ndarray, loss: float
) -> tuple[np.ndarray, np.ndarray]:
    """Accepted tokens and verified nodes of trees of at most `sizes` nodes, from the n nodes of one.

    Beyond the nodes of a tree that was full the j-th best is taken to be n / j times as probable as the n-th.
    """
    probs = probs[: sizes[-1]]
    if is_full and len(probs) < sizes[-1]:
        probs = np.concatenate([probs, probs[-1] * len(probs) / np.arange(len(probs) + 1, sizes[-1] + 1)])
    gains, most = np.concatenate([[0.0], np.cumsum(probs)]), len(probs)
    if loss > 0:
        most = int((gains - loss * curve[1 : len(gains) + 1]).argmax())
    nodes = np.minimum(sizes, most)
    return gains[nodes], nodes


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
            found[:, number] = sum(tree.values) - 1, nodes, min(candidate.depth, candidate.num_nodes.bit_length())
    return found
