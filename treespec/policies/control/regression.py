"""Times by linear regression on the steps served, recent ones weighted more, with a penalty that pulls to a prior.

Axis letters: f features.
"""

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
        self._prior, self._precision, self._forgetting = prior, np.diag(precision), forgetting
        self._moments, self._products = np.zeros((len(prior), len(prior))), np.zeros(len(prior))
        self.coefficients = prior

    def predict(self, features: Float[np.ndarray, "f"]) -> float:
        return float(features @ self.coefficients)

    def add(self, features: Float[np.ndarray, "f"], value: float, weight: float = 1.0) -> None:
        """Observe a value; `fit` makes the coefficients."""
        self._moments = self._forgetting * self._moments + weight * np.outer(features, features)
        self._products = self._forgetting * self._products + weight * value * features

    def forget(self) -> None:
        """Drop what was observed; the prior stays."""
        self._moments, self._products = np.zeros_like(self._moments), np.zeros_like(self._products)

    def fit(self) -> None:
        moments, products = self._moments + self._precision, self._products + self._precision @ self._prior
        self.coefficients = np.maximum(np.linalg.solve(moments, products), 0.0)
