"""Files that cannot be written are named before a model is loaded; what is recorded of a command."""

import pytest
from helpers.cli import invoke

from benchmarks.common.settings import settings as benchmark_settings
from treespec.commands.console import command_line
from treespec.errors import ConfigError


@pytest.mark.parametrize(
    "command",
    [
        ["ablate", "study.yaml", "--out", "file/out"],
        ["bench", "--out", "file/out"],
        ["check", "--report", "none/check.md"],
        ["tune", "--out", "none/a.json"],
        ["trace", "view", "run.jsonl", "--out", "none/x.html"],
        ["warm-up", "model", "--out", "file/x.safetensors"],
        ["warm-up", "model", "--out", "folder"],
    ],
    ids=" ".join,
)
def test_outputs_that_cannot_be_written(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("file", "run.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "study.yaml").write_text("grid: {policy: [plain, tree]}")
    found = invoke(*command).exception
    assert isinstance(found, ConfigError)
    assert "cannot be written" in str(found)


def test_the_recorded_command_names_no_folders(monkeypatch):
    given = ["treespec", "train", "/home/me/model", "--out=/home/me/runs/a/", "--texts", "one=/data/x=y/z", "runs/b"]
    monkeypatch.setattr("sys.argv", given)
    for recorded in (command_line(), benchmark_settings()["command"]):
        assert recorded.split()[-5:] == ["model", "--out=a", "--texts", "one=z", "runs/b"]
