"""Quotients of sums, and the best candidate without hindsight."""

from benchmarks.common.estimates import cross_fitted, quotient


def test_quotients_are_of_sums():
    estimate = quotient([1, 9], [1, 3])
    assert estimate.value == 2.5
    assert (estimate.low, estimate.high) == (1.0, 3.0)


def test_the_best_is_chosen_without_hindsight():
    values, names = cross_fitted({"a": [9.0, 0.0, 0.0, 0.0], "b": [1.0, 1.0, 1.0, 1.0]}, num_folds=2)
    assert names == ["b", "a"]  # Without the first prompt a is the worse one, and with it the better one.
    assert values == [1.0, 0.0, 1.0, 0.0]
