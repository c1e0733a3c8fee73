"""Times by regression: towards the prior first, towards the observations then, never below zero."""

import numpy as np
import pytest

from treespec.policies.control.regression import TimeRegression

PRIOR = np.array([1.0, 2.0])


def observed(coefficients, count, forgetting=1.0):
    regression, rng = TimeRegression(PRIOR, np.array([1.0, 1.0]), forgetting), np.random.default_rng(0)
    for _ in range(count):
        features = np.array([1.0, rng.integers(1, 9)])
        regression.add(features, float(features @ coefficients))
    regression.fit()
    return regression


def test_it_goes_from_the_prior_to_what_was_observed():
    assert observed(np.array([5.0, 0.5]), 0).coefficients.tolist() == PRIOR.tolist()
    assert observed(np.array([5.0, 0.5]), 2000).coefficients == pytest.approx([5.0, 0.5], abs=0.02)
    assert observed(np.array([5.0, 0.5]), 2000).predict(np.array([1.0, 4.0])) == pytest.approx(7.0, abs=0.02)


def test_no_coefficient_is_negative():
    assert observed(np.array([5.0, -1.0]), 500).coefficients.min() == 0.0


def test_old_observations_are_forgotten_and_weights_count():
    regression = observed(np.array([9.0, 9.0]), 50, forgetting=0.5)
    features = np.array([[1.0, 1.0], [1.0, 3.0]] * 20)
    for row in features:
        regression.add(row, float(row @ np.array([1.0, 1.0])), weight=100.0)
    regression.fit()
    assert regression.coefficients == pytest.approx([1.0, 1.0], abs=0.05)
