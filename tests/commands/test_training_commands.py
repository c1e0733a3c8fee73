"""The commands: warm-up, write, train, export."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_llama
from helpers.training import SMALL, VOCAB, write
from helpers.written import TOKENIZER, split
from safetensors.torch import load_file
from typer.testing import CliRunner

import treespec
from benchmarks.common.settings import settings as benchmark_settings
from treespec.commands import app, main
from treespec.commands.console import command_line
from treespec.drafters import WarmStart
from treespec.errors import CheckpointError, ConfigError
from treespec.training import TrainingConfig, parse_settings, train
from treespec.training.text.texts import Texts, read_folder, save_texts


def test_the_command(saved, tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "warm.safetensors"
    prompts.write_text("What is this?\n\nAnd that?\n")
    arguments = ["warm-up", str(saved), "--out", str(out), "--tokens", "200", "--prompts", str(prompts)]
    arguments += ["--batch-size", "4", "--max-length", "24", "--seed", "3", "--name", "toy"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    start = WarmStart.load(out)
    assert start.num_tokens >= 200
    assert start.about["model"] == "toy"
    assert start.about["num_prompts"] == 2
    assert start.about["writing"]["seed"] == 3
    assert (tmp_path / "warm-texts" / "text-00000.safetensors").is_file()
    out.unlink()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    again = WarmStart.load(out)
    assert torch.equal(again.table.candidates, start.table.candidates)
    assert again.about == start.about


def test_the_command_that_only_writes(saved, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts"
    prompts.write_text(json.dumps({"prompt": "What?\n\nAnd that?"}) + "\n\n" + json.dumps({"prompt": "Why?"}) + "\n")
    arguments = ["write", str(saved), "--out", str(out), "--prompts", str(prompts), "--tokens", "200"]
    arguments += ["--batch-size", "4", "--max-length", "40"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    texts = read_folder(out)
    assert len(texts.tokens) >= 200
    written = [TOKENIZER.decode(text) for text, _ in split(texts)]
    assert written[0].startswith("<s>user\nWhat?\n\nAnd that?</s>\n<s>assistant\n")
    assert written[1].startswith("<s>user\nWhy?</s>\n<s>assistant\n")
    last = max(out.iterdir())
    last.unlink()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert last.is_file()
    assert torch.equal(read_folder(out).tokens, texts.tokens), "an interrupted run is resumed"
    prompts.write_text(json.dumps({"prompt": "Why?"}))
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, CheckpointError), "answers to other prompts are in that folder"


def test_the_command_takes_openings_and_temperatures(saved, tmp_path):
    openings, out = tmp_path / "openings.txt", tmp_path / "texts"
    openings.write_text("Translate\n")
    arguments = ["write", str(saved), "--out", str(out), "--openings", str(openings), "--tokens", "100", "--seed", "1"]
    arguments += ["--batch-size", "4", "--max-length", "60", "--max-message", "12", "--temperature", "0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for text, top in split(read_folder(out)):
        words = TOKENIZER.decode(text)
        assert words.startswith("<s>user\nTranslate")
        if "<s>assistant\n" in words:
            start = next(i for i in range(len(text)) if TOKENIZER.decode(text[:i]).endswith("<s>assistant\n"))
            assert torch.equal(top[start - 1 : -1, 0], text[start:]), "all answers are greedy"
    assert CliRunner().invoke(app, [*arguments[:-1], "-1"]).exit_code != 0


def test_the_command_writes_in_another_dtype(saved, tmp_path, monkeypatch):
    seen = []

    def write_texts(model, *_, **__):
        seen.append(model.dtype)
        return Texts(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), torch.zeros(1, 1).long())

    monkeypatch.setattr("treespec.training.text.writing.write_texts", write_texts)
    for dtype in (["--dtype", "bfloat16"], []):
        assert CliRunner().invoke(app, ["write", str(saved), "--out", str(tmp_path), *dtype]).exit_code == 0
    assert seen == [torch.bfloat16, torch.float32]
    refused = CliRunner().invoke(app, ["write", str(saved), "--out", str(tmp_path), "--dtype", "int8"])
    assert isinstance(refused.exception, ConfigError)


def test_errors_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["treespec", "warm-up", str(tmp_path), "--out", str(tmp_path / "x.safetensors")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert sum("treespec: cannot load" in line for line in lines) == 1
    assert not any("Traceback" in line for line in lines)
    result = CliRunner().invoke(app, ["warm-up", "--help"])
    assert result.exit_code == 0


@pytest.fixture
def folders(tmp_path):
    """A saved target and the texts it wrote, as the command reads them."""
    target = tiny_llama(vocab_size=VOCAB, num_layers=3)
    target.save_pretrained(tmp_path / "target")
    (tmp_path / "texts").mkdir()
    save_texts(tmp_path / "texts" / "text-00000.safetensors", write(target, 12), "")
    return tmp_path


def test_the_command_leaves_a_drafter_a_card_a_log_and_a_curve(folders):
    target, texts, out = (str(folders / name) for name in ("target", "texts", "run"))
    settings = [f"--set={name}={value}" for name, value in SMALL.items() if name != "num_steps"]
    command = ["train", target, "--texts", texts, "--out", out, "--kind", "dflash", "--steps", "3", *settings]
    done = CliRunner().invoke(app, [*command, "--name", "tiny-llama"])
    assert done.exit_code == 0, done.output
    card = (folders / "run" / "drafter" / "README.md").read_text()
    table = [line for line in card.splitlines() if line.startswith(("| depth", "| 1 ", "| 2 "))]
    assert len(table) == 3
    assert all(line in done.output for line in table), "acceptance by depth and rank is printed"
    assert {path.name for path in (folders / "run").iterdir()} == {
        "drafter", "features", "log.csv", "evaluation.json", "curve.png", "state.safetensors",
    }  # fmt: skip
    for words in ("# DSpark head for tiny-llama", "3 steps", "576 tokens in 12 texts", "chain of 2, T = 0"):
        assert words in card
    treespec.load_drafter(folders / "run" / "drafter", tiny_llama(vocab_size=VOCAB, num_layers=3))
    whole = ["export", target, f"{out}/drafter", "--out", str(folders / "whole"), "--dtype", "bfloat16"]
    assert CliRunner().invoke(app, whole).exit_code == 0
    tensors = load_file(folders / "whole" / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (VOCAB, 32)
    assert tensors["embed_tokens.weight"].dtype == torch.bfloat16
    shutil.rmtree(folders / "run" / "features")
    again = CliRunner().invoke(app, [*command, "--name", "tiny-llama"])
    assert again.exit_code == 0, again.output


def test_a_kind_given_by_set_is_used_everywhere(folders):
    target, texts, out = (str(folders / name) for name in ("target", "texts", "run"))
    settings = ("--set=kind=draft_model", "--set=num_layers=1", "--set=num_held_out=2")
    found = CliRunner().invoke(app, ["train", target, "--texts", texts, "--out", out, "--steps", "1", *settings])
    assert "cannot load a tokenizer" in str(found.exception), "a draft model goes with its target's"


def test_the_snippets_of_the_training_page_run(folders, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    model, names = tiny_llama(vocab_size=VOCAB, num_layers=3), {"treespec": treespec}
    monkeypatch.chdir(folders)
    monkeypatch.setattr(treespec, "shipped_head", lambda _: Path("runs/dflash/drafter"))
    train(model, read_folder(Path("texts")), "runs/dflash", TrainingConfig(kind="dflash", **SMALL))
    train(model, read_folder(Path("texts")), "runs/draft", TrainingConfig(kind="draft_model", num_layers=2, **SMALL))
    names |= {"model": model, "inputs": {"input_ids": torch.tensor([[5, 7, 9]]), "max_new_tokens": 4}}
    snippets = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    for snippet in snippets:
        exec(snippet.replace("num_steps=1000", "num_steps=1, num_depths=2"), names)
    assert names["result"].evaluation.summary()
    assert parse_settings(set(re.findall(r"--set (\w+=[\w.,-]+)", page)) - {"name=value"})


def test_a_wrong_setting_is_one_line(folders, capsys):
    command = ["train", str(folders / "target"), "--texts", str(folders / "texts"), "--out", str(folders / "run")]
    done = CliRunner().invoke(app, [*command, "--set", "batch=3"])
    assert "no setting 'batch'" in str(done.exception)


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:99"])
def test_a_device_that_does_not_exist_is_named(folders, name):
    command = ["train", str(folders / "target"), "--texts", str(folders / "texts"), "--out", str(folders / "run")]
    found = CliRunner().invoke(app, [*command, "--device", name]).exception
    assert isinstance(found, ConfigError)
    assert f"--device must be an existing cpu, cuda or cuda:NUMBER, got '{name}'" in str(found)


def test_the_recorded_command_names_no_folders(monkeypatch):
    given = ["treespec", "train", "/home/me/model", "--out=/home/me/runs/a/", "--texts", "one=/data/x=y/z", "runs/b"]
    monkeypatch.setattr("sys.argv", given)
    for recorded in (command_line(), benchmark_settings()["command"]):
        assert recorded.split()[-5:] == ["model", "--out=a", "--texts", "one=z", "runs/b"]
