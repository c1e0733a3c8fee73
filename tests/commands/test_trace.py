"""`treespec trace`."""

import json
from functools import partial

from helpers import cli

import treespec
from treespec.lab.setting import Setting

SHORT = ("--max-new-tokens", "16", "--tree", "6", "--prompt", "What is this?")

invoke, succeed = partial(cli.invoke, "trace"), partial(cli.succeed, "trace")


def test_a_run_is_recorded_summed_up_and_shown(saved, tmp_path):
    file = tmp_path / "run.jsonl"
    found = json.loads(succeed("record", file, "--model", saved, *SHORT, "--json", "--distributions").stdout)
    succeed("record", file, "--model", saved, *SHORT)
    first, second = treespec.read_trace(file).calls
    assert first.about["prompt"] == second.about["prompt"]
    pieces = [piece for step in first.steps for piece in step.pieces]
    assert len(pieces) == found["num_tokens"] == 16
    summed = succeed("summary", file)
    assert "times plain decoding" in summed.stdout
    data = json.loads(invoke("summary", file, "--json").stdout)
    assert data["num_tokens"] == 32
    assert [call["end"] for call in data["calls"]] == ["complete", "complete"]
    shown = succeed("view", file, "--json")
    assert json.loads(shown.stdout) == {"page": str(tmp_path / "run.html")}
    assert "treespec trace of model" in (tmp_path / "run.html").read_text()
    succeed("graph", file, "--step", 2, "--out", tmp_path / "tree.graphml")
    assert (tmp_path / "tree.graphml").stat().st_size > 500
    assert "at most" in str(invoke("graph", file, "--step", 999, "--out", tmp_path / "no.json").exception)


def test_a_trace_without_a_step_and_a_cut_one(tmp_path, saved):
    file = tmp_path / "run.jsonl"
    succeed("record", file, "--model", saved, *SHORT)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]) + lines[4][:50])
    cut = succeed("summary", file)
    assert "was left out" in cut.stdout
    assert "interrupted" in cut.stdout
    file.write_bytes(lines[0])
    assert "holds no step" in str(invoke("summary", file).exception)


def test_a_setting_is_recorded(tmp_path, saved):
    file = tmp_path / "run.jsonl"
    Setting(("suffix",), "chain of 2").save(tmp_path / "setting.json")
    succeed("record", file, "--model", saved, *SHORT[:2], *SHORT[4:], "--setting", tmp_path / "setting.json")
    assert "SuffixLookup" in treespec.read_trace(file).calls[0].about["drafter"]
