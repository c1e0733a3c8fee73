"""Predictions for larger models: times of passes, crossings, and the command from measured acceptance to its report."""

import json

import pytest
from helpers.tiny import prompt, tiny_llama

from benchmarks import scale, trained_drafters
from benchmarks.common.prompts import Prompt
from treespec.drafters import SuffixLookup
from treespec.lab import smollm2

SHAPES = {
    "chain of 2": {"tokens": 200, "passes": 100, "levels": 200},
    "tree of 32": {"tokens": 350, "passes": 100, "levels": 600},
}

EASY = [0.95, 0.9, 0.85, 0.8, 0.75, 0.7], [0.95, 0.9, 0.85, 0.8, 0.75]
HARD = [0.2, 0.15, 0.1, 0.08, 0.06, 0.04], [0.2]
"""Values of a tree's nodes and of those that are accepted."""


def test_a_pass_takes_the_longest_of_reading_arithmetic_and_launches():
    target = scale.Target(2, 3.84e12, 0.0, 1e12, 0.0, 1e14)
    assert target.pass_ms(1, 1, None) == pytest.approx(1000)
    assert target.pass_ms(1, 200, None) == pytest.approx(2000)
    assert target.pass_ms(1, 3, {"1": 500.0, "2": 3000.0}) == 3000


def test_few_texts_gain_by_trees_and_many_by_nothing():
    found = {n: scale.speeds(scale.LLAMA_8B, n, SHAPES, None) for n in (1, 4096)}
    assert [max(speeds, key=lambda name: speeds[name]) for speeds in found.values()] == ["tree of 32", "plain"]
    assert 1 < found[1]["tree of 32"] / found[1]["plain"] < 3.5
    assert [scale.LLAMA_70B.has_room(n) for n in (256, 512)] == [True, False]
    said = scale.crossings({str(n): speeds for n, speeds in found.items()}, ["chain", "tree"])
    assert "The best chain passes the best tree from 4096 texts" in said
    assert "Plain decoding passes the best chain from 4096 texts" in said
    assert "shared" not in said


def test_nodes_above_a_value_accept_the_beginning_of_the_path():
    found = trained_drafters.sharing([EASY, HARD])
    assert {"nodes": 6.0, "deviation": 0.0, "accepted": 3.0}.items() <= found["0.0"].items()
    assert {"nodes": 3.0, "deviation": 3.0, "accepted": 2.5}.items() <= found["0.3"].items()
    assert found["0.3"]["expected"] == pytest.approx(sum(EASY[0]) / 2)
    assert {"nodes": 1.0, "accepted": 1.0}.items() <= found["0.9"].items()


def test_a_report_of_measured_acceptance(tmp_path, monkeypatch, capsys):
    """From a drafter's tokens per pass, by shape, on prompts of a tiny model."""
    monkeypatch.setattr(smollm2, "load", lambda: (tiny_llama(), None))
    monkeypatch.setattr(trained_drafters, "load", lambda *_: SuffixLookup())
    monkeypatch.setattr(trained_drafters, "held_out", lambda *_: [Prompt("one", ""), Prompt("two", "")])
    monkeypatch.setattr(trained_drafters, "encode", lambda *_: {"input_ids": prompt()})
    file, output = tmp_path / "head.json", tmp_path / "out.json"
    given = ["--chains", "2", "--trees", "4", "--new-tokens", "12", "--output", str(file)]
    monkeypatch.setattr("sys.argv", ["trained_drafters", "head=folder", *given])
    trained_drafters.main()
    measured = json.loads(file.read_text())["drafters"]["head"]
    assert measured["T = 0"]["chain of 2"]["tokens"] == 24
    greedy = measured["T = 0"]["tree of 4"]
    assert 1 + greedy["sharing"]["0.0"]["accepted"] == pytest.approx((greedy["tokens"] - 2) / greedy["passes"])
    assert "sharing" not in measured["T = 1"]["tree of 4"]
    assert 0 < measured["T = 0"]["tree of 4"]["levels"] <= 3 * measured["T = 0"]["tree of 4"]["passes"]
    monkeypatch.setattr("sys.argv", ["scale", str(file), "--output", str(output)])
    scale.main()
    assert set(json.loads(output.read_text())["found"]["T = 1"]["70B, float8"]["1"]) == {"plain", *measured["T = 1"]}
    greedy, sampled = output.with_suffix(".md").read_text().split("## 8B, bfloat16, measured passes, T = 1")
    assert "## 8B, bfloat16, measured passes, T = 0" in greedy
    assert "| shared trees, times plain |" in greedy
    assert f"`head.json`: {smollm2.NAME} with head=folder alone, 2 prompts of 12 tokens at most. Command: `" in greedy
    assert "| shared trees" not in sampled
    monkeypatch.setattr("sys.argv", ["scale", str(file), "--drafter", "mtp"])
    with pytest.raises(SystemExit):
        scale.main()
    assert "has no drafter 'mtp', but head" in capsys.readouterr().err
