"""`progress=True`: a bar of the emitted tokens."""

import io

import pytest
import torch
from helpers.tiny import prompt, tiny_llama

import treespec
from treespec.hf.generation import progress


@pytest.fixture
def bars(monkeypatch):
    """The bars that were made, without a terminal."""
    made, make = [], progress.tqdm

    def keep(**options):
        made.append(make(file=io.StringIO(), **options))
        return made[-1]

    monkeypatch.setattr(progress, "tqdm", keep)
    return made


@pytest.mark.parametrize("num_rows", [1, 2])
def test_tokens_of_all_rows_are_counted(bars, num_rows):
    model, ids = tiny_llama(), prompt(num_rows)
    speculation = treespec.TreeSpeculation(treespec.SuffixLookup(), tree=4, progress=True)
    options = {"max_new_tokens": 9, "attention_mask": torch.ones_like(ids)}
    out = model.generate(ids, custom_generate=speculation, **options)
    (bar,) = bars
    assert bar.n == bar.total == 9 * num_rows
    assert bar.postfix == f"{speculation.stats.block_efficiency:.2f} per pass"
    assert out.equal(model.generate(ids, **options))


def test_there_is_no_bar_unless_asked_for(bars):
    tiny_llama().generate(prompt(), max_new_tokens=3, custom_generate=treespec.TreeSpeculation(treespec.SuffixLookup()))
    assert bars == []
