"""`treespec check`: verdict, report, exit codes."""

import json
from functools import partial

import pytest
from helpers import cli

from treespec.commands import main
from treespec.errors import CheckpointError, ConfigError, InvalidTreeError
from treespec.lab.selftest import check as module
from treespec.lab.selftest.report import FAILED
from treespec.lab.setting import Setting

QUICK = ["--only", "tree logits", "--only", "greedy texts, given drafter"]

invoke = partial(cli.invoke, "check")


def test_the_verdict_is_printed(saved):
    done = invoke(saved, *QUICK, "--drafter", "suffix", "--drafter", "recycling", "--tree", "6")
    assert done.exit_code == 0, done.output
    assert "Exact as far as tested: 2 checks passed" in done.output
    Setting(("suffix",), "tree of 4").save(saved.parent / "setting.json")
    done = invoke(saved, *QUICK, "--setting", saved.parent / "setting.json", "--no-pack")
    assert "greedy texts, given drafter  ok" in done.output, "what a setting gives is tested"


def test_reports_and_json(saved, tmp_path):
    for name in ("check.md", "check.json"):
        done = invoke(saved, "--only", "tree logits", "--report", tmp_path / name, "--json")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["is_right"], found["findings"][0]["name"]) == (True, "tree logits")
    assert json.loads((tmp_path / "check.json").read_text())["about"]["dtype"] == "float32"
    assert "| tree logits | ok | agree with path logits" in (tmp_path / "check.md").read_text()


def test_a_failed_check_is_exit_code_1(saved, monkeypatch):
    monkeypatch.setitem(module.CHECKS, "tree logits", lambda subject: (FAILED, "planted"))
    done = invoke(saved, "--only", "tree logits")
    assert done.exit_code == 1
    assert "NOT EXACT: 1 checks failed (tree logits)" in done.output


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["--report", "check.txt"], ConfigError, "must be a *.md or *.json file"),
        (["--only", "everything"], ConfigError, "no check is called everything"),
        (["--drafter", "head"], ConfigError, "ships for SmolLM2-135M-Instruct only"),
        (["--drafter", "no/such/folder"], CheckpointError, "cannot load"),
        (["--tree", "many"], InvalidTreeError, "rank paths such as"),
        (["--rule", "best"], ConfigError, "no verification rule is called 'best'"),
        (["--speculative-config", "ngram"], ConfigError, "must be JSON"),
        (["--speculative-config", "3"], ConfigError, "must be a mapping"),
        (["--speculative-config", "{}", "--tree", "8"], ConfigError, "leave out --drafter and --tree"),
        (["--device", "meta"], ConfigError, "must be an existing cpu, cuda or cuda:NUMBER, got 'meta'"),
        (["--device", "cuda:99"], ConfigError, "must be an existing cpu, cuda or cuda:NUMBER, got 'cuda:99'"),
    ],
)
def test_wrong_options_are_named(saved, arguments, error, words):
    found = invoke(saved, *arguments).exception
    assert isinstance(found, error), found
    assert words in str(found)


def test_errors_have_exit_code_2_and_no_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["treespec", "check", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "treespec: cannot load" in capsys.readouterr().err
