"""Slow runs prepared on purpose, each by one cause: the diagnosis names it first, and nothing in a healthy run."""

import json
from dataclasses import replace

import pytest
from helpers.slow_runs import CONTRIBUTING, HEALTHY, HEALTHY_RUNS, ONLY_BY_TRACE, SLOW_RUNS

from treespec.errors import ConfigError
from treespec.lab.diagnosis import diagnose, of_stats, of_trace
from treespec.lab.trace import read_trace


@pytest.mark.parametrize("name", SLOW_RUNS)
def test_the_cause_of_a_slow_run_comes_first(name, tmp_path, monkeypatch):
    run = SLOW_RUNS[name].decode(tmp_path / "run.jsonl", monkeypatch)
    by_trace = diagnose(of_trace(read_trace(tmp_path / "run.jsonl")))
    assert [cause.name for cause in by_trace.causes][:1] == [name], str(by_trace)
    assert by_trace.causes[0].speedup >= by_trace.speedup
    assert by_trace.causes[0].name in str(by_trace)
    by_stats = diagnose(of_stats(*run))
    if name not in ONLY_BY_TRACE:
        assert [cause.name for cause in by_stats.causes][:1] == [name], str(by_stats)
    assert by_stats.speedup == pytest.approx(by_trace.speedup, rel=0.02)


@pytest.mark.parametrize("name", CONTRIBUTING)
def test_what_a_cause_brings_about_does_not_come_before_it(name, tmp_path, monkeypatch):
    run, cause = CONTRIBUTING[name]
    run.decode(tmp_path / "run.jsonl", monkeypatch)
    found = diagnose(of_trace(read_trace(tmp_path / "run.jsonl")))
    assert [cause.name for cause in found.causes][:1] == [cause], str(found)
    assert "hardly ever right" not in str(found)


@pytest.mark.parametrize("name", HEALTHY_RUNS)
def test_nothing_is_named_in_a_healthy_run(name, tmp_path, monkeypatch):
    run = HEALTHY_RUNS[name].decode(tmp_path / "run.jsonl", monkeypatch)
    for evidence in (of_stats(*run), of_trace(read_trace(tmp_path / "run.jsonl"))):
        found = diagnose(evidence)
        assert not found.causes, str(found)
        assert found.speedup > 1.3
        assert found.perfect_speedup > found.speedup
        assert "Nothing holds this run back." in str(found)


def test_the_predicted_speed_is_the_clocks(tmp_path, monkeypatch):
    stats, *about = HEALTHY.decode(tmp_path / "run.jsonl", monkeypatch)
    found = diagnose(of_stats(stats, *about))
    plain = 20.0 * stats.num_emitted_tokens + 1e3 * stats.seconds["prefill"]
    assert found.speedup == pytest.approx(plain / (1e3 * sum(stats.seconds.values())), rel=0.03)
    assert json.loads(json.dumps(found.as_dict()))["speedup"] == found.speedup


def test_pass_times_of_a_busy_machine_predict_no_wonders(tmp_path, monkeypatch):
    """A profile in which one node takes longer than eight cannot make a run faster than its tokens per pass."""
    stats, about, lengths = HEALTHY.decode(tmp_path / "run.jsonl", monkeypatch)
    found = diagnose(of_stats(stats, {**about, "pass_ms": {"1": 300.0, "8": 21.0, "64": 60.0}}, lengths))
    assert found.speedup <= found.tokens_per_pass


def test_of_a_short_answer_the_share_of_the_prompt_is_named(tmp_path, monkeypatch):
    run = replace(SLOW_RUNS["prompt longer than the answer"], num_new=10)
    assert [c.name for c in diagnose(of_stats(*run.decode(tmp_path / "run.jsonl", monkeypatch))).causes] == [
        "prompt longer than the answer"
    ]


def test_what_a_run_has_already_is_not_advised(tmp_path, monkeypatch):
    stats, about, lengths = SLOW_RUNS["hardly any drafts"].decode(tmp_path / "run.jsonl", monkeypatch)
    for drafter, words in (("SuffixLookup()", "TokenRecycling()]"), ("Merge([TokenRecycling()])", "warm-up")):
        found = diagnose(of_stats(stats, {**about, "drafter": drafter}, lengths))
        assert words in found.causes[0].change


def test_what_is_not_known_is_said(tmp_path, monkeypatch):
    stats, about, lengths = HEALTHY.decode(tmp_path / "run.jsonl", monkeypatch)
    found = diagnose(of_stats(stats, {**about, "pass_ms": None}, lengths))
    assert any("pass times" in text for text in found.unknown)
    assert any("record a trace" in text for text in found.unknown)
    (tmp_path / "short").mkdir()
    short = type(HEALTHY)(num_new=4).decode(tmp_path / "short" / "run.jsonl", monkeypatch)
    found = diagnose(of_stats(*short))
    assert not found.causes
    assert any("decode a longer text" in text for text in found.unknown)
    first = type(HEALTHY)(num_new=1).decode(tmp_path / "short" / "first.jsonl", monkeypatch)
    for evidence in (of_stats(*first), of_trace(read_trace(tmp_path / "short" / "first.jsonl"))):
        with pytest.raises(ConfigError, match="prompt's pass gave all"):
            diagnose(evidence)


def test_anything_but_a_speculation_is_refused():
    with pytest.raises(ConfigError, match="looks at a TreeSpeculation, got int"):
        diagnose(5)
