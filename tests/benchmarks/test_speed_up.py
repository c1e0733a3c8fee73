"""The benchmark of README's first block runs the block itself."""

import json

import pytest
import torch
from helpers.tiny import tiny_llama

from benchmarks import speed_up
from benchmarks.common.prompts import Prompt
from treespec.lab import smollm2


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.syspath_prepend("examples")
    from example_models import tiny_tokenizer

    monkeypatch.setattr(smollm2, "load", lambda: (tiny_llama(vocab_size=97), tiny_tokenizer()))


@pytest.mark.parametrize("is_plain", [False, True])
def test_the_block_defines_what_is_measured(tiny, is_plain, capsys):
    names, seconds = speed_up.run_block(is_plain)
    assert seconds > 0
    assert names["out"].shape[1] > names["inputs"]["input_ids"].shape[1]
    assert ("speculation" in names) != is_plain
    assert ("drafts" in capsys.readouterr().out) != is_plain


def test_all_contestants_and_their_report(tiny, tmp_path, monkeypatch):
    prompts = [Prompt("one", "a"), Prompt("two", "b")]
    ids = {"one": [5, 6, 7, 8], "two": [9, 5, 9, 5]}
    monkeypatch.setattr(speed_up, "held_out", lambda path, count: prompts)
    monkeypatch.setattr(speed_up, "encode", lambda _, given: {"input_ids": torch.tensor([ids[given[0].name]])})
    monkeypatch.setattr(speed_up, "first_calls", lambda threads: {"plain": 1.0, "known": 0.5})
    monkeypatch.setattr("sys.argv", ["speed_up", "--new-tokens", "6", "--output", str(tmp_path / "out.json")])
    speed_up.main()
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["differing"] == []
    assert set(data["found"]["T = 1"]["two"]) == {"plain", "optimized", "block", "tree-8"}
    text = (tmp_path / "out.md").read_text()
    assert "| README's block |" in text
    assert "| known | 0.50 |" in text
