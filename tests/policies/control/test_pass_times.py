"""Times of passes by tokens, rows and context, and of drafts by passes and nodes, learned from steps."""

import numpy as np
import pytest

from treespec.policies.control.pass_times import ON_HOST, DraftTimes, PassTimes, Times


def ms(times, num_tokens):
    return times.predict(num_tokens)


@pytest.mark.parametrize("coefficients", [(50.0, 1.0, 0.5), (5.0, 0.0, 5.0), (20.0, 3.0, 0.0)])
def test_times_of_a_server_are_learned_where_nothing_was_measured(coefficients):
    times, rng = PassTimes(), np.random.default_rng(1)
    for _ in range(600):
        rows = int(rng.integers(1, 17))
        tokens = rows + int(rng.integers(0, 128))
        times.update(tokens, rows, 0, float(np.dot(coefficients, [1, rows, tokens])))
    for rows, tokens in ((1, 1), (1, 16), (8, 64), (16, 144)):
        expected = float(np.dot(coefficients, [1, rows, tokens]))
        assert times.predict(tokens, rows) == pytest.approx(expected, rel=0.1)


def test_a_pass_takes_longer_where_the_context_is_long():
    """One call after another; a curve keeps its shape, and longer texts than the last one's take no less."""
    times = PassTimes({1: 30.0, 16: 45.0})
    for context, took in ((100, 37.0), (3000, 74.0)) * 4:
        for _ in range(30):
            times.update(8, 1, context, took)
        assert times.predict(8, 1, context) == pytest.approx(took, rel=0.05)
    short, middle, long = (times.predict(8, 1, context) for context in (100, 1500, 3000))
    assert short < middle < long


def test_what_slows_the_machine_changes_milliseconds_and_no_ratio():
    times = PassTimes({1: 30.0, 16: 45.0})
    before = ms(times, 16) / ms(times, 1)
    for number in range(40):
        times.update(16 if number % 2 else 1, 1, 100, 3 * (45.0 if number % 2 else 30.0))
    assert ms(times, 1) == pytest.approx(90.0, rel=0.05)
    assert ms(times, 16) / ms(times, 1) == pytest.approx(before, rel=0.02)


def test_the_noisier_the_times_the_longer_the_prior_counts():
    """Passes over eight tokens take twice a prior's surplus; half of the noisy times are too long, half too short."""
    truth, found = {1: 30.0, 8: 30.0 * (1 + 2 * (ON_HOST[8] - 1))}, []
    for noise in ((1.0, 1.0), (0.75, 1.25)):
        times = PassTimes()
        for number in range(12):
            tokens = 8 if number // 2 % 2 else 1
            times.update(tokens, 1, 0, noise[number % 2] * truth[tokens])
        found.append(ms(times, 8) / ms(times, 1))
    calm, shaken = found
    assert calm == pytest.approx(truth[8] / 30.0, rel=0.02)
    assert ON_HOST[8] < shaken < 0.97 * calm


def test_a_curve_goes_on_along_its_last_slope_and_never_falls():
    times = PassTimes({1: 30.0, 4: 50.0, 16: 46.0, 32: 62.0})
    assert [ms(times, n) for n in (1, 4, 16, 32, 64)] == pytest.approx([30.0, 46.0, 46.0, 62.0, 94.0])
    assert ms(PassTimes({1: 10.0}), 64) == pytest.approx(10 * (3 * ON_HOST[32] - 2 * ON_HOST[16]))


def test_draft_times_separate_passes_from_nodes_and_ignore_an_outlier():
    times, rng = DraftTimes(0.05), np.random.default_rng(0)
    for number in range(400):
        passes, nodes = int(rng.integers(1, 8)), int(rng.integers(4, 32))
        time = 50.0 if number % 40 == 39 else 0.1 + 0.3 * passes + 0.005 * nodes
        times.update(passes, nodes, 1, 1, time)
    less, more = (times.predict(passes, 16) for passes in (3, 4))
    assert more - less == pytest.approx(0.3, abs=0.03)
    assert less == pytest.approx(1.08, rel=0.1)


def test_large_and_steep_passes_leave_a_time_of_plain_ones():
    """On the line through them, a pass over one token would take less than no time."""
    times = PassTimes()
    for _ in range(100):
        for count in (33, 17, 9, 5):
            times.update(count, 1, 300, 10.0 * (count - 3))
    assert times.predict(1, 1, 300) > 0


@pytest.mark.parametrize("rows", [1, 2, 8, 256])
def test_whatever_the_clock_says_something_is_learned(rows):
    """Two steps with drafts may leave no time for one without: its error must not outweigh all else."""
    for number in range(100):
        rng, times, drafts = np.random.default_rng(number), PassTimes(), DraftTimes(0.05)
        for nodes in [*rng.integers(1, 8, 2), 0, 0, *rng.integers(0, 64, 8)]:
            context, took = int(10 ** rng.uniform(0, 6)), float(rng.lognormal(2, 0.3 + number % 2))
            times.update(rows * (1 + nodes), rows, context, took)
            drafts.update(nodes, nodes * rows, 1, rows, took / 1e3)
            assert 0 < times.predict(rows, rows, context) < np.inf
            assert 0 <= drafts.predict(4, 8) < np.inf


def test_drafts_of_nothing_do_not_make_those_of_trees_expensive():
    """On the line through trees, a draft of nothing would take less than no time."""
    times = DraftTimes()
    for count in (64, 32, 16) * 60:
        times.update(0, count, 1, 1, 0.004 * (count - 12))
    for _ in range(10):
        times.update(0, 0, 1, 1, 0.005)
    assert times.predict(0, 64) < 0.3


def test_a_regression_goes_from_the_prior_to_what_was_observed_and_is_never_negative():
    for per_node, count in ((0.5, 2000), (-0.5, 500)):
        regression, rng = Times((1.0, 2.0), (20.0, 20.0), 0.1), np.random.default_rng(0)
        assert regression.coefficients == [1.0, 2.0]
        for _ in range(count):
            features = 1.0, float(rng.integers(1, 9))
            regression.add(features, float(np.dot(features, (5.0, per_node))))
        if per_node > 0:
            assert regression.scale * regression.relative((1.0, 4.0)) == pytest.approx(7.0, rel=0.03)
        else:
            assert min(regression.coefficients) == 0.0


def test_reading_a_long_text_does_not_count_as_drafting():
    times = DraftTimes(0.05)
    for _ in range(2):  # Two are most of the latest three, whatever was expected.
        times.update(2, 4, 1000, 1, 10.11)
    assert times.reading(500) == pytest.approx(5.0, rel=0.05)
    assert times.predict(2, 4) == pytest.approx(0.11, abs=0.01)
