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
    said = scale.crossings({str(n): speeds for n, speeds in found.items()})
    assert "The best chain passes the best tree from 4096 texts" in said


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
    assert 0 < measured["T = 0"]["tree of 4"]["levels"] <= 3 * measured["T = 0"]["tree of 4"]["passes"]
    monkeypatch.setattr("sys.argv", ["scale", str(file), "--output", str(output)])
    scale.main()
    assert set(json.loads(output.read_text())["found"]["T = 1"]["70B, float8"]["1"]) == {"plain", *measured["T = 1"]}
    assert "## 8B, bfloat16, measured passes, T = 0" in output.with_suffix(".md").read_text()
    monkeypatch.setattr("sys.argv", ["scale", str(file), "--drafter", "mtp"])
    with pytest.raises(SystemExit):
        scale.main()
    assert "has no drafter 'mtp', but head" in capsys.readouterr().err
