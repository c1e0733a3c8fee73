"""What drafts are worth, learned from verified trees only.

A best-first tree holds all smaller ones and the chain of first children, so one verified tree says what each of them
would have gained, and its least probable nodes what a larger tree would add.

Axis letters: c some candidates, n nodes below a root, best first, m those and further ones, t numbers of nodes.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.policies.control.candidates import CHAIN_LENGTHS, Candidate, Candidates
from treespec.policies.control.drafted import NUM_RANKS, ConfidenceTable, DraftedTrees, prior_acceptance
from treespec.policies.heap import grow_best_first
from treespec.tree import TreeBatch

STEP_MEMORY = 0.985
"""The factor on what candidates have shown per drafted step."""
PRIOR_PASSES = 2
"""Draft passes of trees: few, as they stop where passes do not pay."""
PRIOR_ROWS, PRIOR_HALVED = 2.0, 8.0
"""The weight of what acceptance by depth and rank predicts, in rows of a step, and the rows that halve it."""
DEEPER_SHARE = 0.7
"""The most of a level's gain that a deeper one is expected to have."""
FIRST_STEPS = 24
"""After these candidates learn from every other step, as their estimates move slowly and making them takes time."""
DEEPEST = 8
SEEN_SHARE = 0.75
"""What a step shows is a mean of what was accepted, with this weight, and of what was expected, which is less noisy."""


class Acceptance:
    """Expected accepted tokens, verified nodes and draft passes of every candidate."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates, self._table = candidates, ConfidenceTable()
        self._prior = _prior_expectation(candidates)
        self._sums = np.zeros((3, len(candidates)))
        """Accepted tokens, verified nodes below the root and passes, summed over rows, older ones less."""
        self._weights = np.zeros(len(candidates))
        self._num_steps = 0
        self._expected: Float[np.ndarray, "3 C"] | None = None

    def expected(self) -> Float[np.ndarray, "3 C"]:
        """Accepted tokens, nodes below the root and draft passes."""
        if self._expected is None:
            weights = PRIOR_ROWS * PRIOR_HALVED / (PRIOR_HALVED + self._weights)
            self._expected = (self._sums + weights * self._prior) / (self._weights + weights)
        return self._expected

    def read(self, trees: TreeBatch) -> DraftedTrees:
        """A step's trees with their probabilities."""
        drafted = DraftedTrees(trees)
        drafted.estimate(self._table.estimates(drafted))
        return drafted

    def update(
        self,
        drafted: DraftedTrees,
        emitted: Sequence[Sequence[int]],
        chosen: int,
        num_passes: int,
        curve: Float[np.ndarray, "t"],
        loss: float,
    ) -> None:
        """Learn from the tokens emitted after every tree's root.

        Args:
            chosen: the number of the candidate that drafted them.
            num_passes: draft passes.
            curve: milliseconds by nodes, see `PassTimes.curve`.
            loss: accepted tokens per row that a millisecond is worth; 0 where trees are not trimmed.
        """
        tried, right, chains = drafted.outcomes(emitted)
        self._table.update(drafted, tried, right)
        self._num_steps += 1
        if self._num_steps > FIRST_STEPS and self._num_steps % 2:
            return
        candidates, candidate = self._candidates, self._candidates[chosen]
        gains = (1 - SEEN_SHARE) * drafted.path_probs
        gains.ravel()[right] += SEEN_SHARE
        is_full = drafted.num_nodes >= candidate.num_nodes - 1
        shown = np.zeros_like(self._sums)
        is_cut = [candidate.is_chain or is_full_row for is_full_row in is_full.tolist()]
        shown[:, candidates.chains] = _of_chains(chains, drafted.path_probs, gains, is_cut, candidates.chain_lengths)
        if not candidate.is_chain:
            step = _Step(drafted, gains, candidate, num_passes, is_full)
            for depth, trees in candidates.by_depth.items():
                shown[:, trees] = step.of_trees(candidates.num_nodes[trees], depth, curve, loss)
        known = candidates.chains if candidate.is_chain else slice(1, None)
        num_rows, self._expected = len(emitted), None
        self._sums *= STEP_MEMORY
        self._weights *= STEP_MEMORY
        self._sums[:, known] += num_rows * shown[:, known]
        self._weights[known] += num_rows


def _of_chains(
    chains: Sequence[Sequence[int]],
    path_probs: Float[np.ndarray, "B N"],
    gains: Float[np.ndarray, "B N"],
    is_cut: Sequence[bool],
    lengths: Sequence[int],
) -> Float[np.ndarray, "3 c"]:
    """The acceptance of chains of first children by length; one that was cut is continued at its last rate."""
    by_level, longest = [0.0] * (CHAIN_LENGTHS[-1] + 1), 0
    for chain, is_cut_row in zip(chains, is_cut, strict=True):
        shown, probs = gains.take(chain[: CHAIN_LENGTHS[-1]]).tolist(), path_probs.take(chain).tolist()
        if is_cut_row and probs:
            share = probs[-1] / probs[-2] if len(probs) > 1 and probs[-2] > 0 else probs[-1]
            while len(shown) < CHAIN_LENGTHS[-1]:
                shown.append(shown[-1] * share)
        longest = max(longest, len(shown))
        for level, gain in enumerate(shown, start=1):
            by_level[level] += gain / len(chains)
    sums, nodes = list(accumulate(by_level)), [min(length, longest) for length in lengths]
    return np.array([[sums[length] for length in nodes], nodes, nodes])


class _Step:
    """What the trees that were drafted say of the best-first trees of all sizes and depths."""

    def __init__(
        self,
        drafted: DraftedTrees,
        gains: Float[np.ndarray, "B N"],
        candidate: Candidate,
        num_passes: int,
        is_full: Bool[np.ndarray, "B"],
    ) -> None:
        self._candidate, self._num_passes, self._is_full = candidate, num_passes, is_full.tolist()
        arrays = drafted.num_nodes, drafted.probs, drafted.by_order(gains), drafted.by_order(drafted.depths)
        rows = zip(*(array.tolist() for array in arrays), strict=True)
        self._width = len(drafted.probs[0])
        self._rows = [list(zip(p, g, d, strict=True))[:count] for count, p, g, d in rows]
        """Each row's probabilities, gains and depths of the nodes below its root, best first."""

    def of_trees(
        self, sizes: Int[np.ndarray, "c"], depth: int, curve: Float[np.ndarray, "t"], loss: float
    ) -> Float[np.ndarray, "3 c"]:
        """Accepted tokens, verified nodes and draft passes of trees of at most `sizes` nodes below the root."""
        rows, more, num_passes = self._rows, 0.0, min(self._num_passes, depth)
        if depth < self._candidate.depth:
            rows = [[node for node in row if node[2] <= depth] for row in rows]
        elif depth > self._candidate.depth:
            more = self._deeper(min(depth, DEEPEST) - self._candidate.depth)
            num_passes = min(depth, DEEPEST)
        probs, gains = self._means(rows, int(sizes[-1]))
        kept = len(probs)
        if loss > 0 and kept:
            costs, best = curve[1 : kept + 2].tolist(), 0.0
            kept = 0
            for count, (total, cost) in enumerate(zip(accumulate(probs), costs[1:], strict=True), start=1):
                if (profit := total - loss * (cost - costs[0])) > best:
                    best, kept = profit, count
        nodes = np.minimum(sizes, kept)
        sums = np.array([0.0, *accumulate(gains)])
        return np.array([sums[nodes] + more, nodes, np.minimum(num_passes, sizes)])

    def _means(self, rows: Sequence[Sequence[tuple[float, float, int]]], most: int) -> tuple[list[float], list[float]]:
        """Mean probabilities and gains of at most `most` nodes: more than were drafted if all nodes of a tree were.

        The j-th best of k nodes is taken to be k / j as probable as the k-th.
        """
        is_further = any(self._is_full) and min(map(len, rows)) < most
        probs, gains = ([0.0] * (most if is_further else min(most, self._width)) for _ in range(2))
        for row, is_full in zip(rows, self._is_full, strict=True):
            for index, (prob, gain, _) in enumerate(row[:most]):
                probs[index] += prob / len(rows)
                gains[index] += gain / len(rows)
            for index in range(len(row), most if is_full and row else 0):
                further = row[-1][0] * len(row) / ((index + 1) * len(rows))
                probs[index] += further
                gains[index] += further
        return probs, gains

    def _deeper(self, num_levels: int) -> float:
        """What more levels would gain below trees that were not to go deeper: less and less, as their last ones did."""
        depth, num_rows = self._candidate.depth, len(self._rows)
        levels = ([gain for row in self._rows for _, gain, at in row if at == level] for level in (depth, depth - 1))
        last, before = (sum(level) / num_rows for level in levels)
        share = min(last / before, DEEPER_SHARE) if before > 0 else 0.0
        return last * sum(share**level for level in range(1, num_levels + 1))


def _prior_expectation(candidates: Candidates) -> Float[np.ndarray, "3 C"]:
    """Accepted tokens, nodes and passes of every candidate if acceptance depended on the rank alone."""
    children = [(prob, rank, None) for rank, prob in enumerate(prior_acceptance(np.arange(NUM_RANKS)).tolist())]
    found = np.zeros((3, len(candidates)))
    for number, candidate in enumerate(candidates):
        if candidate.is_chain:
            found[:, number] = 1 - 0.5**candidate.depth, candidate.depth, candidate.depth
        elif candidate.num_nodes > 1:
            tree = grow_best_first(0, None, lambda _: children, candidate.num_nodes, candidate.depth)
            nodes = len(tree.tokens) - 1
            found[:, number] = sum(tree.values) - 1, nodes, min(candidate.depth, PRIOR_PASSES)
    return found
