"""Times by linear regression on the steps served, recent ones weighted more, with a penalty that pulls to a prior.

Axis letters: f features.
"""

from collections.abc import Sequence
from operator import mul

import numpy as np
from jaxtyping import Float


class TimeRegression:
    """Coefficients that are never negative: ridge regression whose penalty pulls them to `prior`.

    Args:
        prior: the coefficients before anything was observed.
        precision: of the prior, one number per coefficient: how many observations of its feature it counts for.
        forgetting: what earlier observations count for at every new one.
    """

    def __init__(self, prior: Float[np.ndarray, "f"], precision: Float[np.ndarray, "f"], forgetting: float) -> None:
        self._pull, self._forgetting = np.column_stack([np.diag(precision), precision * prior]), forgetting
        self.coefficients = prior
        self.forget()

    def predict(self, features: Sequence[float]) -> float:
        return sum(map(mul, features, self.coefficients.tolist()))

    def add(self, features: Sequence[float], value: float, weight: float = 1.0) -> None:
        """Observe a value; `fit` makes the coefficients."""
        observed = np.array([*features, value])
        self._sums *= self._forgetting
        self._sums += weight * observed[:-1, None] * observed

    def forget(self) -> None:
        """Drop what was observed; the prior stays."""
        self._sums = np.zeros_like(self._pull)
        """[f, f + 1]: products of the features with each other and, last, with the values."""

    def fit(self) -> None:
        """By elimination: of two or three unknowns faster than `np.linalg.solve`; such sums need no pivots."""
        rows = (self._sums + self._pull).tolist()
        for index, pivot in enumerate(rows):
            for row in rows[:index] + rows[index + 1 :]:
                factor = row[index] / pivot[index]
                row[:] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
        self.coefficients = np.array([max(row[-1] / row[index], 0.0) for index, row in enumerate(rows)])
