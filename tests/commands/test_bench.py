"""`treespec bench`: paired runs, files, exit codes."""

import json
from functools import partial

from helpers import cli

from treespec.commands import bench
from treespec.lab.selftest.agreement import Agreement

SMALL = ("--max-new-tokens", "4", "--rounds", "1", "--drafter", "suffix")  # As generate names it, too.

invoke, succeed = partial(cli.invoke, "bench"), partial(cli.succeed, "bench")


def test_everything_is_measured_and_written(saved, prompts, tmp_path):
    done = succeed(saved, "--prompts", prompts, *SMALL, "--tree", "4", "--out", tmp_path / "results", "--json")
    found = json.loads(done.stdout)
    assert list(found["runs"]) == ["plain generate", "chain of 4", "tree of 4 nodes", "auto"]
    for mine in found["runs"].values():
        assert [len(run["seconds"]) for run in mine.values()] == [1, 1]
        assert all(run["position"] is None for run in mine.values()), "identical to plain"
    assert json.loads((tmp_path / "results" / "results.json").read_text()) == found
    assert (tmp_path / "results" / "comparison.png").stat().st_size > 1000


def test_vllms_configuration_and_the_table(saved, prompts):
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 2})
    done = succeed(saved, "--prompts", prompts, *SMALL[:4], "--speculative-config", config)
    assert "given configuration" in done.stdout
    assert "2 of 2" in done.stdout


def test_a_wrong_output_is_exit_code_1(saved, prompts, monkeypatch):
    wrong = Agreement(1, False)
    monkeypatch.setattr(bench.Bench, "agreements", lambda self, plains, runs: dict.fromkeys(runs, wrong))
    done = invoke(saved, "--prompts", prompts, *SMALL, "--no-auto")
    assert done.exit_code == 1
    assert "WRONG" in done.stdout
