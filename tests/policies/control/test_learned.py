"""When the control drafts: what a draft must gain, alone, after drafts that did not pay, and for several rows."""

import numpy as np
import pytest

from treespec.policies.control.candidates import PLAIN, Candidates
from treespec.policies.control.learned import FIRST_WAIT, Learned
from treespec.policies.control.times import NUM_PLAIN


def decided(learned, gain, num_rows, is_plain_known=True):
    """Whether a draft is taken that is predicted to be `gain` times as fast as plain decoding."""
    candidates = len(learned.candidates)
    rates = np.where(np.arange(candidates) == PLAIN, 1.0, gain)
    number, _, _ = learned.decide(rates, np.ones(candidates), None, 0.0, num_rows, is_plain_known)
    return number != PLAIN


@pytest.mark.parametrize(("num_rows", "least"), [(1, 1.03), (2, 1.1), (8, 1.1)])
def test_several_rows_must_gain_more(num_rows, least):
    learned = Learned(Candidates(8), {1: 30.0, 16: 36.0}, 0.0)
    assert not decided(learned, least - 0.01, num_rows)
    assert decided(learned, least + 0.01, num_rows)


def test_after_drafts_that_did_not_pay_more_is_asked():
    learned = Learned(Candidates(8), {1: 30.0, 16: 36.0}, 0.0)
    taken = [decided(learned, 1.05, 1) for _ in range(3)]
    assert all(taken)
    probes = [number for number in range(40) if decided(learned, 0.9, 1)]
    assert probes[0] == FIRST_WAIT
    assert not decided(learned, 1.05, 1)
    assert decided(learned, 1.15, 1)


def test_in_a_close_call_plain_steps_of_several_rows_are_timed_first():
    learned = Learned(Candidates(8), {1: 30.0, 16: 36.0}, 0.0)
    assert not decided(learned, 1.4, 4, is_plain_known=False)
    assert decided(learned, 1.6, 4, is_plain_known=False)
    assert decided(learned, 1.4, 4)
    assert learned.passes.is_plain_known(1, 100)
    for number in range(NUM_PLAIN):
        learned.passes.update(4, 100, 4, 50.0)
        assert not learned.passes.is_plain_known(4, 100), number
        learned.passes.update(4, 100, 1, 30.0)
    assert learned.passes.is_plain_known(4, 100)
    assert not learned.passes.is_plain_known(4, 1000)
