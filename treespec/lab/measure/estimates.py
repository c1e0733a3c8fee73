"""Bootstrap intervals of paired measurements: one number per prompt or context for each of several contestants."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000


class Estimate(NamedTuple):
    """A statistic and its 95 % bootstrap interval (percentiles)."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2, sign: str = "") -> str:
        value, low, high = (f"{x:{sign}.{digits}f}" for x in self)
        return f"{value} ({low} to {high})"


def bootstrap(values: Sequence[float], statistic: Callable[..., np.ndarray] = np.mean) -> Estimate:
    """Resample `values` with replacement; `statistic` takes an array and an axis. Give differences for a paired one."""
    array = np.asarray(values, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.percentile(statistic(array[picks], axis=1), [2.5, 97.5])
    return Estimate(float(statistic(array, axis=0)), float(low), float(high))


def difference(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The mean paired difference."""
    return bootstrap(np.subtract(above, below).tolist())
