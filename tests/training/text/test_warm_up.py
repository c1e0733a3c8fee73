"""Warm starts from text that a model wrote."""

import pytest
import torch
from helpers.written import TARGET, TOKENIZER, WRITING
from safetensors.torch import load_file

from treespec.errors import CheckpointError
from treespec.training.text.texts import read_folder, read_texts
from treespec.training.text.warm_up import warm_up
from treespec.training.text.writing import Writing


def test_an_interrupted_run_is_resumed_and_gives_the_same(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start = warm_up(TARGET, TOKENIZER, 500, whole, writing=WRITING)
    shards = sorted(whole.iterdir())
    assert len(shards) >= 3
    parts.mkdir()
    (parts / shards[0].name).write_bytes(shards[0].read_bytes())
    counts = []
    again = warm_up(TARGET, TOKENIZER, 500, parts, writing=WRITING, on_tokens=counts.append)
    assert counts[0] == len(read_texts(shards[0]).tokens)
    assert [path.name for path in sorted(parts.iterdir())] == [path.name for path in shards]
    assert torch.equal(torch.cat(list(again.texts)), torch.cat(list(start.texts)))
    assert torch.equal(again.table.candidates, start.table.candidates)
    assert torch.equal(read_folder(parts).tokens, torch.cat(list(start.texts)))
    first, second = (read_texts(path).tokens.tolist() for path in shards[:2])
    assert first != second, "every batch has a seed of its own"
    with pytest.raises(CheckpointError, match="other settings"):
        warm_up(TARGET, TOKENIZER, 500, parts, writing=Writing(seed=1))


def test_the_table_holds_the_models_candidates(tmp_path):
    start = warm_up(TARGET, TOKENIZER, 300, tmp_path, prompts=["Why?", "Who grants what?"], writing=WRITING)
    assert start.about["num_prompts"] == 2
    assert start.vocab_size == len(TOKENIZER)
    assert TOKENIZER.decode(start.texts[1]).startswith("<s>user\nWho grants what?</s>\n<s>assistant\n")
    texts = read_folder(tmp_path)
    seen = texts.tokens[texts.top[:, 0] >= 0].unique()
    assert torch.equal((start.table.candidates[:, 0] >= 0).nonzero().squeeze(1), seen)


def test_damaged_texts_are_refused(tmp_path):
    warm_up(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    assert set(load_file(path)) == {"tokens", "lengths", "top"}
    path.write_bytes(whole[:-20])
    with pytest.raises(CheckpointError, match="cannot be read"):
        warm_up(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    path.unlink()
    with pytest.raises(CheckpointError, match="write some text first"):
        read_folder(tmp_path)
