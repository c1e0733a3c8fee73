"""Milliseconds of what a server does, by counts, fitted to what it did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treespec.policies.control.regression import TimeRegression

FORGETTING = 0.98
"""What earlier observations count for at every new one."""
PRIOR_WEIGHT = 0.02
"""In observations."""
OUTLIER = 3.0
"""What takes more times what was predicted counts as this many."""
LEAST_SCALE = 0.1
"""A coefficient's prior is at least this share of the first one's unsure."""


class TimeModel:
    """Time = a + b * counts: ridge regression, recent observations first; see `TimeRegression`.

    Args:
        shape: the coefficients before anything is known, in units of the first one, the constant's.
        units: what a coefficient that is 0 there may be.
    """

    def __init__(self, shape: Sequence[float], units: Sequence[float]) -> None:
        self._shape, self._units = np.array(shape), np.array(units)
        self._regression: TimeRegression | None = None

    @property
    def coefficients(self) -> np.ndarray:
        """The constant's first; in units of it before the first observation."""
        return self._shape if self._regression is None else self._regression.coefficients

    def predict(self, *counts: float | np.ndarray) -> np.ndarray:
        """Milliseconds, never falling with a count."""
        constant, *slopes = self.coefficients
        return constant + sum(slope * np.asarray(count) for slope, count in zip(slopes, counts, strict=True))

    def observe(self, *counts: float, ms: float) -> None:
        """Learn one time."""
        features = [1.0, *counts]
        if self._regression is None:
            prior = ms / float(np.array(features) @ self._shape) * self._shape
            scale = np.maximum(prior, LEAST_SCALE * prior.max() * self._units)
            self._regression = TimeRegression(prior, PRIOR_WEIGHT / scale**2, FORGETTING)
        expected = max(self._regression.predict(features), 1e-6)
        ms = min(ms, OUTLIER * expected)
        self._regression.add(features, ms, weight=1 / max(min(ms, expected), 1e-6) ** 2)  # Relative errors count.
        self._regression.fit()
