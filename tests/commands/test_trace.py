"""`treespec trace`."""

import json
from functools import partial

from helpers import cli

import treespec
from treespec.lab.setting import Setting

SHORT = ("--max-new-tokens", "16", "--tree", "6", "--prompt", "What is this?")

invoke = partial(cli.invoke, "trace")


def test_a_run_is_recorded_summed_up_and_shown(saved, tmp_path):
    file = tmp_path / "run.jsonl"
    done = invoke("record", file, "--model", saved, *SHORT, "--json", "--distributions")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    again = invoke("record", file, "--model", saved, *SHORT)
    assert again.exit_code == 0, again.output
    first, second = treespec.read_trace(file).calls
    assert first.about["prompt"] == second.about["prompt"]
    pieces = [piece for step in first.steps for piece in step.pieces]
    assert len(pieces) == found["num_tokens"] == 16
    summed = invoke("summary", file)
    assert summed.exit_code == 0, summed.output
    assert "times plain decoding" in summed.stdout
    data = json.loads(invoke("summary", file, "--json").stdout)
    assert data["num_tokens"] == 32
    assert [call["end"] for call in data["calls"]] == ["complete", "complete"]
    shown = invoke("view", file, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == {"page": str(tmp_path / "run.html")}
    assert "treespec trace of model" in (tmp_path / "run.html").read_text()
    assert invoke("graph", file, "--step", 2, "--out", tmp_path / "tree.graphml").exit_code == 0
    assert (tmp_path / "tree.graphml").stat().st_size > 500
    assert "at most" in str(invoke("graph", file, "--step", 999, "--out", tmp_path / "no.json").exception)


def test_a_trace_without_a_step_and_a_cut_one(tmp_path, saved):
    file = tmp_path / "run.jsonl"
    assert invoke("record", file, "--model", saved, *SHORT).exit_code == 0
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]) + lines[4][:50])
    cut = invoke("summary", file)
    assert cut.exit_code == 0
    assert "was left out" in cut.stdout
    assert "interrupted" in cut.stdout
    file.write_bytes(lines[0])
    assert "holds no step" in str(invoke("summary", file).exception)


def test_a_setting_is_recorded(tmp_path, saved):
    file = tmp_path / "run.jsonl"
    Setting(("suffix",), "chain of 2").save(tmp_path / "setting.json")
    done = invoke("record", file, "--model", saved, *SHORT[:2], *SHORT[4:], "--setting", tmp_path / "setting.json")
    assert done.exit_code == 0, done.output
    assert "SuffixLookup" in treespec.read_trace(file).calls[0].about["drafter"]
