"""`treespec bench`: paired runs, files, exit codes."""

import json
from functools import partial

import pytest
from helpers import cli

from treespec.commands import bench
from treespec.commands.models import load
from treespec.cpu.linear_kernels import has_fast_linears
from treespec.errors import ConfigError
from treespec.lab.selftest.agreement import Agreement

SMALL = ("--max-new-tokens", "4", "--rounds", "1", "--drafter", "suffix")  # As generate names it, too.

invoke = partial(cli.invoke, "bench")


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "prompts.txt").write_text("What is this?\nAnd that?\n")
    return tmp_path / "prompts.txt"


def test_everything_is_measured_and_written(saved, prompts, tmp_path):
    done = invoke(saved, "--prompts", prompts, *SMALL, "--tree", "4", "--out", tmp_path / "results", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["runs"]) == ["plain generate", "chain of 4", "tree of 4 nodes", "auto"]
    for mine in found["runs"].values():
        assert [len(run["seconds"]) for run in mine.values()] == [1, 1]
        assert all(run["position"] is None for run in mine.values()), "identical to plain"
    assert json.loads((tmp_path / "results" / "results.json").read_text()) == found
    assert (tmp_path / "results" / "comparison.png").stat().st_size > 1000


def test_packed_targets_have_packed_draft_models(saved):
    name = str(saved)
    for is_packed in (True, False):
        loaded = load(name, is_packed=is_packed)
        loaded.drafters([name, "suffix"])
        assert has_fast_linears(loaded.model) is has_fast_linears(loaded.parts[name]) is is_packed


def test_vllms_configuration_and_the_table(saved, prompts):
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 2})
    done = invoke(saved, "--prompts", prompts, *SMALL[:4], "--speculative-config", config)
    assert done.exit_code == 0, done.output
    assert "given configuration" in done.stdout
    assert "2 of 2" in done.stdout


def test_a_wrong_output_is_exit_code_1(saved, prompts, monkeypatch):
    wrong = {"a": Agreement(1, 0.5, False)}
    monkeypatch.setattr(bench.Bench, "agreements", lambda self, plains, runs: dict.fromkeys(runs, wrong["a"]))
    done = invoke(saved, "--prompts", prompts, *SMALL, "--no-auto")
    assert done.exit_code == 1
    assert "WRONG" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--speculative-config", "{}", "--tree", "8"], "leave out --drafter, --chain and --tree"),
        (["--out", f"{__file__}/results"], "is not a folder that you may write to"),
    ],
)
def test_wrong_options_are_named_before_anything_is_measured(saved, arguments, words):
    found = invoke(saved, *arguments).exception
    assert isinstance(found, ConfigError)
    assert words in str(found)
