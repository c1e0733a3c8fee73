"""`treespec check`: verdict, report, exit codes."""

import json
from functools import partial

from helpers import cli

from treespec.lab.selftest import check as module
from treespec.lab.selftest.report import FAILED
from treespec.lab.setting import Setting

QUICK = ["--only", "tree logits", "--only", "greedy texts, given drafter"]

invoke, succeed = partial(cli.invoke, "check"), partial(cli.succeed, "check")


def test_the_verdict_is_printed(saved):
    done = succeed(saved, *QUICK, "--drafter", "suffix", "--drafter", "recycling", "--tree", "6")
    assert "Exact as far as tested: 2 checks passed" in done.output
    Setting(("suffix",), "tree of 4").save(saved.parent / "setting.json")
    done = invoke(saved, *QUICK, "--setting", saved.parent / "setting.json", "--no-pack")
    assert "greedy texts, given drafter  ok" in done.output, "what a setting gives is tested"


def test_reports_and_json(saved, tmp_path):
    for name in ("check.md", "check.json"):
        found = json.loads(succeed(saved, "--only", "tree logits", "--report", tmp_path / name, "--json").stdout)
        assert (found["is_right"], found["findings"][0]["name"]) == (True, "tree logits")
    assert json.loads((tmp_path / "check.json").read_text())["about"]["dtype"] == "float32"
    assert "| tree logits | ok | agree with path logits" in (tmp_path / "check.md").read_text()


def test_a_failed_check_is_exit_code_1(saved, monkeypatch):
    monkeypatch.setitem(module.CHECKS, "tree logits", lambda subject: (FAILED, "planted"))
    done = invoke(saved, "--only", "tree logits")
    assert done.exit_code == 1
    assert "NOT EXACT: 1 checks failed (tree logits)" in done.output
