"""`treespec warm-up` and `treespec write`."""

import json

import torch
from helpers.cli import invoke, succeed
from helpers.written import TOKENIZER, split

from treespec.drafters import WarmStart
from treespec.errors import CheckpointError
from treespec.training.text.batch import Writing
from treespec.training.text.texts import Texts, read_folder


def test_the_command(saved, tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "warm.safetensors"
    prompts.write_text("What is this?\n\nAnd that?\n")
    arguments = ["warm-up", saved, "--out", out, "--tokens", 200, "--prompts", prompts]
    arguments += ["--batch-size", 4, "--max-length", 24, "--seed", 3, "--name", "toy"]
    succeed(*arguments)
    start = WarmStart.load(out)
    assert start.num_tokens >= 200
    assert start.about["model"] == "toy"
    assert start.about["num_prompts"] == 2
    assert start.about["writing"]["seed"] == 3
    assert (tmp_path / "warm-texts" / "text-00000.safetensors").is_file()


def test_the_command_that_only_writes(saved, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts"
    prompts.write_text(json.dumps({"prompt": "What?\n\nAnd that?"}) + "\n\n" + json.dumps({"prompt": "Why?"}) + "\n")
    arguments = ["write", saved, "--out", out, "--prompts", prompts, "--tokens", 200, "--batch-size", 4]
    arguments += ["--max-length", 40]
    succeed(*arguments)
    texts = read_folder(out)
    assert len(texts.tokens) >= 200
    written = [TOKENIZER.decode(text) for text, _ in split(texts)]
    assert written[0].startswith("<s>user\nWhat?\n\nAnd that?</s>\n<s>assistant\n")
    assert written[1].startswith("<s>user\nWhy?</s>\n<s>assistant\n")
    last = max(out.iterdir())
    last.unlink()
    succeed(*arguments)
    assert last.is_file()
    assert torch.equal(read_folder(out).tokens, texts.tokens), "an interrupted run is resumed"
    prompts.write_text(json.dumps({"prompt": "Why?"}))
    refused = invoke(*arguments)
    assert isinstance(refused.exception, CheckpointError), "answers to other prompts are in that folder"


def test_all_options_arrive(saved, tmp_path, monkeypatch):
    seen = []

    def write_texts(model, tokenizer, num_tokens, folder, **options):
        seen.append((model.dtype, num_tokens, options.get("openings"), options["writing"]))
        return Texts(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), torch.zeros(1, 1).long())

    monkeypatch.setattr("treespec.training.text.writing.write_texts", write_texts)
    (tmp_path / "openings.txt").write_text("Translate\n")
    given = ["--openings", tmp_path / "openings.txt", "--tokens", 100, "--seed", 1, "--batch-size", 4]
    given += ["--max-length", 60, "--max-message", 12, "--temperature", 0, "--temperature", 1, "--dtype", "bfloat16"]
    for options in (given, []):
        succeed("write", saved, "--out", tmp_path, *options)
    writing = Writing(temperatures=(0.0, 1.0), max_message=12, max_length=60, batch_size=4, seed=1)
    assert seen[0] == (torch.bfloat16, 100, ["Translate"], writing)
    assert seen[1] == (torch.float32, 200_000, None, Writing())
