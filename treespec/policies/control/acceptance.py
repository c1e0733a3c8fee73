"""What drafts are worth, learned from verified trees only.

A best-first tree holds all smaller ones and the chain of first children, so one verified tree says what each of them
would have gained, and its least probable nodes what a larger tree would add.

Axis letters: B rows, M nodes of a row below its root, best first, K further ones too, N nodes with the root and
padding, c some of the candidates, t numbers of nodes in a curve of times.
"""

from collections.abc import Sequence

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
PRIOR_ROWS = 2.0
"""The weight of what acceptance by depth and rank predicts, in rows of a step."""
DEEPER_SHARE = 0.7
"""The most of a level's gain that a deeper one is expected to have."""
DEEPEST = 8
SEEN_SHARE = 0.75
"""What a step shows is a mean of what was accepted, with this weight, and of what was expected, which is less noisy."""


class Acceptance:
    """Expected accepted tokens, verified nodes and draft passes of every candidate."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates, self._table = candidates, ConfidenceTable()
        self._prior = PRIOR_ROWS * _prior_expectation(candidates)
        self._sums = np.zeros((3, len(candidates)))
        """Accepted tokens, verified nodes below the root and passes, summed over rows, older ones less."""
        self._weights = np.zeros(len(candidates))

    def expected(self) -> Float[np.ndarray, "3 C"]:
        """Accepted tokens, nodes below the root and draft passes."""
        return (self._sums + self._prior) / (self._weights + PRIOR_ROWS)

    def read(self, trees: TreeBatch) -> DraftedTrees:
        """A step's trees with their probabilities."""
        drafted = DraftedTrees(trees)
        drafted.set_probs(self._table.estimates(drafted))
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
        tried, right = drafted.outcomes(emitted)
        self._table.update(drafted, tried, right)
        candidates, candidate = self._candidates, self._candidates[chosen]
        gains = SEEN_SHARE * right + (1 - SEEN_SHARE) * drafted.path_probs
        is_full = drafted.num_nodes >= candidate.num_nodes - 1
        shown = np.zeros_like(self._sums)
        shown[:, candidates.chains] = _of_chains(drafted, gains, is_full | candidate.is_chain, candidates.chain_lengths)
        if not candidate.is_chain:
            step = _Step(drafted, gains, candidate, num_passes, is_full)
            for depth, trees in candidates.by_depth.items():
                shown[:, trees] = step.of_trees(candidates.num_nodes[trees], depth, curve, loss)
        known = candidates.chains if candidate.is_chain else slice(1, None)
        num_rows = len(emitted)
        self._sums *= STEP_MEMORY
        self._weights *= STEP_MEMORY
        self._sums[:, known] += num_rows * shown[:, known]
        self._weights[known] += num_rows


def _of_chains(
    drafted: DraftedTrees, gains: Float[np.ndarray, "B N"], is_cut: Bool[np.ndarray, "B"], lengths: Sequence[int]
) -> Float[np.ndarray, "3 c"]:
    """Of the chains of first children by length; one that was cut goes on as it ended."""
    levels = np.arange(1, CHAIN_LENGTHS[-1] + 1)
    at = drafted.is_first[:, :, None] & (drafted.depths[:, :, None] == levels)
    found = at.any(1)
    probs, shown = (np.where(at, values[:, :, None], 0.0).sum(1) for values in (drafted.path_probs, gains))
    last = found.sum(1)[:, None]
    if not found.all():
        above = np.concatenate([np.ones((len(probs), 1)), probs], 1)
        ends, before = (np.take_along_axis(above, at, 1) for at in (last, np.maximum(last - 1, 0)))
        share = np.divide(ends, before, out=np.zeros_like(ends), where=(before > 0) & (last > 0))
        further = np.take_along_axis(shown, np.maximum(last - 1, 0), 1) * share ** np.maximum(levels - last, 0)
        shown = np.where(found, shown, further * is_cut[:, None])
        last = np.where(is_cut[:, None] & (last > 0), levels[-1], last)
    sums, longest = np.concatenate([[0.0], shown.mean(0).cumsum()]), int(last.max())
    nodes = np.minimum(lengths, longest)
    return np.array([sums[nodes], nodes, nodes])


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
        self._candidate, self._num_passes, self._is_full = candidate, num_passes, is_full[:, None]
        self._num_nodes, order = drafted.num_nodes[:, None], drafted.order
        values = drafted.path_probs, np.where(drafted.path_probs > 0, gains, 0.0), drafted.depths
        self._probs, self._gains, self._depths = (np.take_along_axis(array, order, 1) for array in values)

    def of_trees(
        self, sizes: Int[np.ndarray, "c"], depth: int, curve: Float[np.ndarray, "t"], loss: float
    ) -> Float[np.ndarray, "3 c"]:
        """Accepted tokens, verified nodes and draft passes of trees of at most `sizes` nodes below the root."""
        probs, gains, count = self._probs, self._gains, self._num_nodes
        more, num_passes = 0.0, min(self._num_passes, depth)
        if depth < self._candidate.depth:
            is_inside = self._depths <= depth
            first = np.argsort(~is_inside, axis=1, kind="stable")
            probs, gains = (np.take_along_axis(np.where(is_inside, v, 0.0), first, 1) for v in (probs, gains))
            count = np.minimum(is_inside.sum(1)[:, None], count)
        elif depth > self._candidate.depth:
            more = self._deeper(min(depth, DEEPEST) - self._candidate.depth)
            num_passes = min(depth, DEEPEST)
        most = int(sizes[-1])
        probs, gains = self._further(probs, gains, count, most)
        num_known = int(count.max()) if not self._is_full.any() else most
        kept = num_known
        if loss > 0 and kept:
            profit = probs[:, :kept].mean(0).cumsum() - loss * (curve[2 : kept + 2] - curve[1])
            best = int(profit.argmax())
            kept = best + 1 if profit[best] > 0 else 0
        nodes = np.minimum(sizes, kept)
        sums = np.zeros(most + 1)
        gains.mean(0).cumsum(out=sums[1:])
        return np.array([sums[nodes] + more, nodes, np.minimum(num_passes, sizes)])

    def _further(
        self,
        probs: Float[np.ndarray, "B M"],
        gains: Float[np.ndarray, "B M"],
        count: Int[np.ndarray, "B 1"],
        most: int,
    ) -> tuple[Float[np.ndarray, "B K"], Float[np.ndarray, "B K"]]:
        """Both for `most` nodes: in full trees the j-th best of further ones is n / j as probable as the n-th."""
        probs, gains = (np.pad(array[:, :most], ((0, 0), (0, max(most - array.shape[1], 0)))) for array in (probs, gains))
        ranks = np.arange(1, most + 1)
        if not self._is_full.any() or (count >= most).all():
            return probs, gains
        ends = np.take_along_axis(probs, np.clip(count - 1, 0, most - 1), 1) * count * self._is_full
        is_beyond, further = ranks > count, ends / ranks
        return np.where(is_beyond, further, probs), np.where(is_beyond, further, gains)

    def _deeper(self, num_levels: int) -> float:
        """What more levels would gain below trees that were not to go deeper: less and less, as their last ones did."""
        last, before = (self._gains[self._depths == self._candidate.depth - up].sum() / len(self._gains) for up in (0, 1))
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
