"""`treespec warm-up` and `treespec write`."""

import json

import torch
from helpers.cli import invoke
from helpers.written import TOKENIZER, split

from treespec.drafters import WarmStart
from treespec.errors import CheckpointError, ConfigError
from treespec.training.text.texts import Texts, read_folder


def test_the_command(saved, tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "warm.safetensors"
    prompts.write_text("What is this?\n\nAnd that?\n")
    arguments = ["warm-up", saved, "--out", out, "--tokens", 200, "--prompts", prompts]
    arguments += ["--batch-size", 4, "--max-length", 24, "--seed", 3, "--name", "toy"]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    start = WarmStart.load(out)
    assert start.num_tokens >= 200
    assert start.about["model"] == "toy"
    assert start.about["num_prompts"] == 2
    assert start.about["writing"]["seed"] == 3
    assert (tmp_path / "warm-texts" / "text-00000.safetensors").is_file()
    out.unlink()
    assert invoke(*arguments).exit_code == 0
    again = WarmStart.load(out)
    assert torch.equal(again.table.candidates, start.table.candidates)
    assert again.about == start.about


def test_the_command_that_only_writes(saved, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts"
    prompts.write_text(json.dumps({"prompt": "What?\n\nAnd that?"}) + "\n\n" + json.dumps({"prompt": "Why?"}) + "\n")
    arguments = ["write", saved, "--out", out, "--prompts", prompts, "--tokens", 200, "--batch-size", 4]
    arguments += ["--max-length", 40]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    texts = read_folder(out)
    assert len(texts.tokens) >= 200
    written = [TOKENIZER.decode(text) for text, _ in split(texts)]
    assert written[0].startswith("<s>user\nWhat?\n\nAnd that?</s>\n<s>assistant\n")
    assert written[1].startswith("<s>user\nWhy?</s>\n<s>assistant\n")
    last = max(out.iterdir())
    last.unlink()
    assert invoke(*arguments).exit_code == 0
    assert last.is_file()
    assert torch.equal(read_folder(out).tokens, texts.tokens), "an interrupted run is resumed"
    prompts.write_text(json.dumps({"prompt": "Why?"}))
    refused = invoke(*arguments)
    assert isinstance(refused.exception, CheckpointError), "answers to other prompts are in that folder"


def test_the_command_takes_openings_and_temperatures(saved, tmp_path):
    openings, out = tmp_path / "openings.txt", tmp_path / "texts"
    openings.write_text("Translate\n")
    arguments = ["write", saved, "--out", out, "--openings", openings, "--tokens", "100", "--seed", "1"]
    arguments += ["--batch-size", "4", "--max-length", "60", "--max-message", "12", "--temperature", "0"]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    for text, top in split(read_folder(out)):
        words = TOKENIZER.decode(text)
        assert words.startswith("<s>user\nTranslate")
        if "<s>assistant\n" in words:
            start = next(i for i in range(len(text)) if TOKENIZER.decode(text[:i]).endswith("<s>assistant\n"))
            assert torch.equal(top[start - 1 : -1, 0], text[start:]), "all answers are greedy"
    assert invoke(*arguments[:-1], "-1").exit_code != 0


def test_the_command_writes_in_another_dtype(saved, tmp_path, monkeypatch):
    seen = []

    def write_texts(model, *_, **__):
        seen.append(model.dtype)
        return Texts(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), torch.zeros(1, 1).long())

    monkeypatch.setattr("treespec.training.text.writing.write_texts", write_texts)
    for dtype in (["--dtype", "bfloat16"], []):
        assert invoke("write", saved, "--out", tmp_path, *dtype).exit_code == 0
    assert seen == [torch.bfloat16, torch.float32]
    refused = invoke("write", saved, "--out", tmp_path, "--dtype", "int8")
    assert isinstance(refused.exception, ConfigError)


def test_files_that_cannot_be_written_are_named_before_the_model_is_loaded(tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "x.safetensors"):
        refused = invoke("warm-up", tmp_path, "--out", out).exception
        assert "cannot be written" in str(refused)
