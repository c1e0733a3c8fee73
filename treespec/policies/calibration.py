"""Running estimates of probabilities from few outcomes: fine cells fall back to coarse ones.

The control corrects drafters' confidences by them, and a merge weighs its parts.
"""

from collections.abc import Hashable, Sequence


class Calibration:
    """Estimates of how often something happened, in cells that are made when first counted.

    A cell's estimate is (hits + prior_trials x prior) / (trials + prior_trials), where the prior is the next coarser
    cell's estimate and, for the coarsest cell, a confidence that is given.

    Args:
        prior_trials: the weight of the prior, in trials.
        memory: the factor on a cell's counts per trial; about the last 1 / (1 - memory) trials count.
    """

    def __init__(self, prior_trials: float, memory: float) -> None:
        self._prior_trials, self._memory = prior_trials, memory
        self._counts: dict[Hashable, tuple[float, float]] = {}

    def estimate(self, confidence: float, cells: Sequence[Hashable]) -> float:
        """The probability of what has this confidence and is counted in these cells, the coarsest first."""
        weight, counts = self._prior_trials, self._counts
        for cell in cells:
            if (found := counts.get(cell)) is not None:
                confidence = (found[0] + weight * confidence) / (found[1] + weight)
        return confidence

    def update(self, is_hit: bool, cells: Sequence[Hashable]) -> None:
        """Count one trial in each of the cells."""
        for cell in cells:
            hits, trials = self._counts.get(cell, (0.0, 0.0))
            self._counts[cell] = (self._memory * hits + is_hit, self._memory * trials + 1.0)
