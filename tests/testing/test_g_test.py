"""The G-test finds shifted and impossible outcomes, and pools what is rare."""

import pytest

from treespec.errors import ConfigError
from treespec.testing import g_test


def test_an_impossible_outcome_fails_at_once() -> None:
    assert g_test({"a": 500, "b": 499, "c": 1}, {"a": 0.5, "b": 0.5, "c": 0.0}) == 0
    assert g_test({"a": 500, "b": 499, "d": 1}, {"a": 0.5, "b": 0.5}) == 0
    assert g_test({"a": 500, "b": 500, "d": 0}, {"a": 0.5, "b": 0.5}) == 1


def test_small_cells_are_pooled() -> None:
    probs = {0: 0.5, 1: 0.49} | dict.fromkeys(range(2, 102), 0.0001)
    assert g_test({0: 500, 1: 490} | dict.fromkeys(range(92, 102), 1), probs) == pytest.approx(1, abs=1e-6)


def test_a_shift_is_found() -> None:
    """G = 2 * (600 ln 1.2 + 400 ln 0.8) = 40.3 with one degree of freedom."""
    assert g_test({0: 600, 1: 400}, {0: 0.5, 1: 0.5}) == pytest.approx(2.2e-10, rel=0.1)


def test_sums_that_were_fixed_beforehand_cost_a_degree_of_freedom_each() -> None:
    counts, probs = {0: 60, 1: 40, 2: 60, 3: 40}, dict.fromkeys(range(4), 0.25)
    assert g_test(counts, probs, num_groups=2) < g_test(counts, probs)
    assert g_test({0: 9, 1: 1}, {0: 0.5, 1: 0.5}, num_groups=2) == 1


def test_probabilities_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="sum to one"):
        g_test({0: 5}, {0: 0.5})
