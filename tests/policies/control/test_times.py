"""Times of passes by rows, nodes and context, and of drafts by passes and nodes, learned from steps."""

import numpy as np
import pytest

from treespec.policies.control.times import DraftTimes, PassTimes


def test_a_pass_takes_longer_where_the_context_is_long():
    """Learned from the steps served, by powers of two; a context never met is like the nearest one."""
    times = PassTimes({1: 30.0, 16: 45.0})
    for _ in range(200):
        times.update(1, 100, 8, 37.0)
        times.update(1, 3000, 8, 74.0)
    short, long, longer = (times.curve(1, context)[8] for context in (100, 3000, 9000))
    assert short == pytest.approx(37.0, rel=0.05)
    assert long == pytest.approx(74.0, rel=0.05)
    assert longer == long


def test_draft_times_separate_passes_from_nodes_and_ignore_an_outlier():
    times, rng = DraftTimes(level_ms=1.0), np.random.default_rng(0)
    for number in range(200):
        passes, nodes = int(rng.integers(1, 8)), int(rng.integers(4, 32))
        times.update(passes, nodes, 500.0 if number % 40 == 39 else 2.0 + 6.0 * passes + 0.1 * nodes)
    assert times.level_ms == pytest.approx(6.0, abs=0.5)
    assert times.predict(np.array([3.0]), np.array([16])) == pytest.approx([21.6], rel=0.1)
