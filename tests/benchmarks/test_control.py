"""The control's benchmark: times of simulated machines, and the way from calls of a tiny model to the report."""

import numpy as np
import pytest
from helpers.tiny import prompt, tiny_llama

from benchmarks import control
from treespec import TokenRecycling

TIMES = {1: [(0.0, 9.0), (0.0, 10.0), (0.0, 11.0)], 8: [(2.0, 20.0)] * 3}


@pytest.mark.parametrize(("slope", "expected"), [(0.5, 15.0), (1.0, 20.0), (2.0, 30.0)])
def test_a_machine_has_its_own_times_of_nodes(slope, expected):
    assert np.array_equal(control.Simulated(TIMES, slope).step_ms, [[0.0, 10.0], [2.0, expected]])


def test_calls_are_counted_in_the_times_of_the_machine(monkeypatch):
    monkeypatch.setattr(control, "SIZES", (1, 4))
    monkeypatch.setattr(control, "fastest_head", lambda _: None)
    monkeypatch.setattr(control, "named_drafters", lambda *_: [TokenRecycling()])
    prompts, options = [{"input_ids": prompt(seed=seed)} for seed in (0, 1)], {"max_new_tokens": 12, "do_sample": False}
    found = control.measure(tiny_llama(), None, prompts, options)
    for by_slope in found.values():
        assert list(by_slope["fixed"]) == ["1", "4"]
        assert min(*by_slope["fixed"].values(), by_slope["first"], by_slope["later"], by_slope["own_ms"]) > 0
    text = control.report({"prompts": 2, "new_tokens": 12, "loads": [0.1], "found": {"T = 0": found}})
    assert text.count("| T = 0 |") == 3
