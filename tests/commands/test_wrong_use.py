"""Wrong use is named before anything is measured, and nothing is written; what is recorded of a command."""

import shlex

import pytest
from helpers.cli import invoke

from benchmarks.common.settings import settings as benchmark_settings
from treespec.commands import main
from treespec.commands.console import command_line
from treespec.errors import CheckpointError, ConfigError, InvalidTreeError, TraceError
from treespec.lab.setting import Setting

FILES = {
    "file": "mine\n",
    "run.jsonl": "hello\n",
    "study.yaml": "grid: {policy: [plain, tree]}",
    "no-setting.json": "{}",
}


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        ("ablate study.yaml --out file/out", ConfigError, "is not a folder that you may write to"),
        ("bench --out file/out", ConfigError, "is not a folder that you may write to"),
        ("check --report none/check.md", ConfigError, "is not a folder that you may write to"),
        ("tune --out none/a.json", ConfigError, "is not a folder that you may write to"),
        ("trace view run.jsonl --out none/x.html", ConfigError, "is not a folder that you may write to"),
        ("warm-up model --out file/x.safetensors", ConfigError, "is not a folder that you may write to"),
        ("warm-up model --out model", ConfigError, "cannot be written: it is a folder"),
        ("check model --report check.txt", ConfigError, "must be a *.md or *.json file"),
        ("check model --only everything", ConfigError, "no check is called everything"),
        ("check model --drafter head", ConfigError, "ships for SmolLM2-135M-Instruct only"),
        ("check model --drafter no/such/folder", CheckpointError, "cannot load"),
        ("check model --tree many", InvalidTreeError, "rank paths such as"),
        ("check model --rule best", ConfigError, "no verification rule is called 'best'"),
        ("check model --speculative-config ngram", ConfigError, "must be JSON"),
        ("check model --speculative-config 3", ConfigError, "must be a mapping"),
        ("check model --speculative-config {} --tree 8", ConfigError, "leave out --drafter and --tree"),
        ("check model --device meta", ConfigError, "must be an existing cpu, cuda or cuda:NUMBER, got 'meta'"),
        ("check model --device cuda:99", ConfigError, "must be an existing cpu, cuda or cuda:NUMBER, got 'cuda:99'"),
        ("bench model --speculative-config {} --tree 8", ConfigError, "leave out --drafter, --chain and --tree"),
        ("bench model --speculative-config {} --setting setting.json", ConfigError, "got both"),
        ("tune model --max-latency 0", ConfigError, "--max-latency must be positive"),
        ("tune model --drafter no/such/folder", CheckpointError, "cannot load"),
        ("generate model --prompt a --file file", ConfigError, "by --prompt or by --file, got both"),
        ("generate model --prompt ' '", ConfigError, "the prompt is empty"),
        ("generate model --prompt a --setting no-setting.json", ConfigError, "is not a setting file"),
        ("generate model --prompt a --setting setting.json --tree 4", ConfigError, "leave out the options"),
        ("write model --out texts --dtype int8", ConfigError, "dtype must be one of"),
        ("write model --out texts --temperature -1", ConfigError, "every temperature must be finite"),
        ("explain --target a,b --draft 0.5,0.5 --coins 0,0", ConfigError, "--target takes numbers separated by commas"),
        ("explain --target 0.5 --draft 0.5,0.5 --coins 0", ConfigError, "must have shape [2], got [1]"),
        ("explain --target 0.5 --draft 0.5 --coins nan", ConfigError, "coins must lie in [0, 1], got [nan]"),
        ("trace view run.jsonl", TraceError, "line 1"),
        ("trace view run.html", ConfigError, "the page would replace the trace"),
        ("trace record file --model model --prompt a", TraceError, "expected a trace of format"),
        ("trace record model --model model --prompt a", ConfigError, "path of a file in an existing folder"),
    ],
)
def test_wrong_use_is_named_and_nothing_is_written(command, error, words, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    Setting(("suffix",)).save(tmp_path / "setting.json")
    found = invoke(*shlex.split(command)).exception
    assert isinstance(found, error), found
    assert words in str(found)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "setting.json", *FILES}
    assert all((tmp_path / name).read_text() == text for name, text in FILES.items())


def test_errors_have_exit_code_2_and_no_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["treespec", "check", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "treespec: cannot load" in capsys.readouterr().err


def test_the_recorded_command_names_no_folders(monkeypatch):
    given = ["treespec", "train", "/home/me/model", "--out=/home/me/runs/a/", "--texts", "one=/data/x=y/z", "runs/b"]
    monkeypatch.setattr("sys.argv", given)
    for recorded in (command_line(), benchmark_settings()["command"]):
        assert recorded.split()[-5:] == ["model", "--out=a", "--texts", "one=z", "runs/b"]
