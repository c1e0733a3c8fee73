"""Recommendations of `tune`, given measurements."""

import math

import pytest
from helpers.tiny import prompt, tiny_llama

from treespec.errors import UnsupportedModelError
from treespec.lab.measure import tune as module
from treespec.lab.measure.candidates import Candidate, Limits, pick
from treespec.lab.measure.paired import Bench, Estimate
from treespec.lab.measure.tune import Forecast, drafter_sets, tune
from treespec.lab.named import named_drafters
from treespec.lab.pass_times import Profile
from treespec.lab.setting import Setting


def candidate(tree, speeds, step_ms=20.0, is_right=True):
    mean = math.prod(speeds) ** (1 / len(speeds))
    return Candidate(Setting(("suffix",), tree), Estimate(mean, mean, mean), speeds, 1.0, 1.0, step_ms, is_right)


def picked(*candidates, limits=Limits()):  # noqa: B008
    best = pick(candidates, limits)
    return None if best is None else best.way.tree


def test_the_fastest_is_taken_but_auto_within_the_noise():
    auto = candidate("auto", [1.4, 1.5, 1.6, 1.5])
    assert picked(auto, candidate("tree of 8", [1.8, 1.9, 2.0, 1.9])) == "tree of 8"
    assert picked(auto, candidate("tree of 8", [1.2, 2.0, 1.3, 1.9])) == "auto", "better on some prompts only"
    assert picked(auto, candidate("chain of 4", [1.0, 1.0, 1.1, 1.0])) == "auto"
    assert picked(candidate("auto", [0.9, 0.99]), candidate("chain of 2", [0.8, 0.9])) is None, "plain is faster"


def test_limits_and_wrong_outputs():
    auto, tree = candidate("auto", [1.4, 1.5]), candidate("tree of 8", [2.0, 2.1], step_ms=50.0)
    assert picked(auto, tree, limits=Limits(max_latency_ms=40.0)) == "auto"
    assert picked(auto, candidate("tree of 8", [2.0, 2.1], is_right=False)) == "auto"
    assert picked(tree, limits=Limits(max_latency_ms=40.0)) is None


def test_sets_of_drafters():
    assert drafter_sets([], "toy") == [("recycling",), ("suffix",), ("recycling", "suffix")]
    assert drafter_sets(["d"], "toy")[0] == ("d",)
    assert ("d", "recycling", "suffix") in drafter_sets(["d"], "toy")
    assert drafter_sets([], "some/SmolLM2-135M-Instruct") == [("head",), ("warm",), ("head", "warm")]


def test_those_predicted_to_be_fastest_are_measured():
    def forecasts(factor, slow=20.0):
        rates = {"plain": 40.0, "chain of 2": 50.0, "chain of 4": 60.0, "tree of 4": 55.0, "tree of 8": 70.0}
        return {n: Forecast(factor * rate, slow if n == "tree of 8" else 10.0, 2.0) for n, rate in rates.items()}

    found = {("a",): forecasts(1.0), ("b",): forecasts(1.2), ("c",): forecasts(1.1)}
    ways = [(*way.drafters, way.tree) for way in module._finalists(found, Limits())]
    shapes = ("auto", "chain of 4", "tree of 8")
    assert ways == [(names, shape) for names in ("b", "c") for shape in shapes]
    limited = module._finalists(found, Limits(max_latency_ms=15.0))
    assert {way.tree for way in limited} == {"auto", "chain of 4", "tree of 4"}


@pytest.mark.parametrize(
    "sampling", [{"do_sample": False}, pytest.param({"do_sample": True, "temperature": 0.7}, marks=pytest.mark.slow)]
)
def test_a_whole_search(monkeypatch, sampling):
    monkeypatch.setattr(module, "is_quiet", lambda: False)
    monkeypatch.setattr(module, "is_busy", lambda share: True)
    model, steps = tiny_llama(), []
    inputs = {str(seed): {"input_ids": prompt(seed=seed), "attention_mask": prompt().bool()} for seed in range(2)}
    bench = Bench(model, inputs, 8, sampling)
    sets = [("recycling",), ("recycling", "suffix")]

    def make(names):
        return named_drafters(names, model, None, "toy")

    given = {"limits": Limits(max_nodes=6, max_latency_ms=1e-3), "num_rounds": 1, "name": "toy"}
    found = tune(bench, make, sets, **given, advance=lambda what, done, total: steps.append((what, done, total)))
    assert {c.way.tree for c in found.candidates} == {"auto"}, "nothing else is as short as a microsecond"
    assert any("other processes" in warning for warning in found.warnings)
    assert any("even plain decoding takes" in warning for warning in found.warnings)
    measured = found.setting.measured
    assert set(measured["forecasts"]) == {"recycling", "recycling + suffix"}
    assert all(c.is_right for c in found.candidates)
    assert steps[-1][1] == steps[-1][2]
    found = tune(bench, make, sets[:1], limits=Limits(max_nodes=6), num_rounds=1, name="toy")
    names = [candidate.way.tree for candidate in found.candidates]
    assert names[:1] == ["auto"]
    assert any(name.startswith("chain") for name in names)
    assert any(name.startswith("tree") for name in names)
    assert found.setting.max_nodes == 6
    assert len(found.setting.measured["candidates"]) == len(names)


def test_models_without_drafts(monkeypatch):
    monkeypatch.setattr(module, "pass_profile", lambda model, is_remeasured: Profile({}))
    bench = Bench(tiny_llama(), {"a": {"input_ids": prompt()}}, 4)
    with pytest.raises(UnsupportedModelError, match="single tokens only"):
        tune(bench, lambda names: [], [("suffix",)])
