"""Bootstrap intervals of paired measurements: one number per prompt or context for each of several contestants."""

from __future__ import annotations

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


def bootstrap(
    values: Sequence[float], statistic: Callable[..., np.ndarray] = np.mean, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Resample `values` with replacement; `statistic` takes an array and an axis. Give differences for a paired one."""
    array = np.asarray(values, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(array), (resamples, len(array)))
    low, high = np.percentile(statistic(array[picks], axis=1), [2.5, 97.5])
    return Estimate(float(statistic(array, axis=0)), float(low), float(high))


def difference(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Estimate:
    """The mean paired difference."""
    return bootstrap(np.subtract(above, below).tolist(), seed=seed)


def ratio(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Estimate:
    """The median paired ratio."""
    return bootstrap(np.divide(above, below).tolist(), np.median, seed)


def quotient(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Estimate:
    """The quotient of sums, such as all tokens by all passes; pairs are drawn together."""
    pairs = np.array([above, below], dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(above), (RESAMPLES, len(above)))
    low, high = np.percentile(np.divide(*pairs[:, picks].sum(-1)), [2.5, 97.5])
    return Estimate(float(np.divide(*pairs.sum(-1))), float(low), float(high))


def cross_fitted(candidates: dict[str, Sequence[float]], num_folds: int = 4) -> tuple[list[float], list[str]]:
    """The best candidate's measurements without hindsight: in every fold the one that is best on the other folds.

    A single prompt has no others: the best on it.

    Args:
        candidates: by name, one number per prompt, more is better; of equals the first is chosen.

    Returns:
        One number per prompt, and the name chosen in every fold.
    """
    size = len(next(iter(candidates.values())))
    folds = np.arange(size) % num_folds
    values, names = np.zeros(size), []
    for fold in range(min(num_folds, size)):
        is_other = folds != fold if size > 1 else folds == fold
        others = {name: np.asarray(found)[is_other] for name, found in candidates.items()}
        names.append(max(others, key=lambda name: float(np.mean(others[name]))))
        values[folds == fold] = np.asarray(candidates[names[-1]])[folds == fold]
    return values.tolist(), names
