"""The others' share of the processors, from the system's counters."""

import pytest

from treespec.hf import machine
from treespec.hf.machine import OtherWork, is_busy, is_quiet


@pytest.mark.parametrize(
    ("start", "end", "share"),
    [
        ((10.0, 4.0, 1.0), (20.0, 9.0, 4.0), 0.2),  # Ten seconds: five idle, three of this process.
        ((10.0, 4.0, 1.0), (20.0, 9.0, 7.0), 0.0),  # Counters of different clocks.
        ((10.0, 4.0, 1.0), (10.0, 4.0, 1.0), 0.0),
        (None, None, None),
    ],
)
def test_the_share_of_others(monkeypatch, start, end, share):
    times = iter([start, end])
    monkeypatch.setattr(machine, "_processor_seconds", lambda: next(times))
    assert OtherWork().share() == share


def test_busy_and_quiet(monkeypatch):
    assert not is_busy(None)
    assert not is_busy(0.01)
    assert is_busy(0.5)
    monkeypatch.setattr(machine, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(machine, "_latest", None)
    shares = iter([0.5, 0.0])
    monkeypatch.setattr(OtherWork, "share", lambda self: next(shares))
    assert [is_quiet(), is_quiet()] == [False, False], "watched once a minute"
    monkeypatch.setattr(machine, "VALID_SECONDS", -1.0)
    assert is_quiet()


def test_this_systems_counters():
    share = OtherWork().share()
    assert share is None or 0 <= share <= 1


def test_processors_that_this_process_may_not_use_do_not_count(monkeypatch):
    lines = "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 100 0 0 300 100 0 0 0 0 0\ncpu1 900 0 0 0 0 0 0 0 0 0\nctxt 7\n"
    monkeypatch.setattr(machine.Path, "read_text", lambda path: lines)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: {0}, raising=False)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100, raising=False)
    assert (machine._processor_seconds() or ())[:2] == (5.0, 4.0)
