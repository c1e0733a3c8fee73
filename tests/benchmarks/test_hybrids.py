"""The benchmark of hybrids: own passes in chunks as long as the tree, and kinds that cannot be measured."""

import sys
from contextlib import nullcontext

import pytest
import torch
from transformers import Cache

from benchmarks.hybrids import models, time
from benchmarks.hybrids.__main__ import TABLES
from treespec.hf.cache.growing import GrowingLayer
from treespec.hf.recurrent import rg_lru

SIZES = (128, 2, 0)
FUNCTIONS = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention", "mamba2_chunk_scan")


@pytest.mark.parametrize("kind", models.PADDED)
def test_own_passes_pad_to_no_more_than_the_tokens(kind, monkeypatch):
    model, sizes = models.build(kind, *SIZES), []
    file = sys.modules[type(model).__module__]
    (name,) = (name for name in FUNCTIONS if hasattr(file, name))
    own = getattr(file, name)

    def noted(*args, **options):
        sizes.append(options.get("chunk_size", "usual"))
        return own(*args, **options)

    monkeypatch.setattr(file, name, noted)
    prompt, tokens = torch.arange(3, 12)[None], torch.arange(20, 25)[None]
    found = []
    with torch.no_grad():
        for chunks in (nullcontext(), models.chunks_of(model, 5)):
            run = models.own_passes(model, prompt)
            sizes.clear()
            with chunks:
                found.append(run(tokens))
    assert set(sizes) == {5}
    assert torch.allclose(*found, atol=1e-4)
    run(tokens)
    assert 5 not in sizes[-1:]


def test_times_in_chunks_of_as_many_tokens(monkeypatch):
    monkeypatch.setattr(time, "NUM_NODES", (1, 3))
    found = time.measure_chunks(128, 2, 1, 0)
    assert set(found) == set(models.PADDED)
    title, header, rows = TABLES["chunks"](found)[0]
    assert "in chunks of n" in title
    assert header == ["recurrence", "1", "3"]
    assert len(rows) == 3


def test_kinds_that_are_not_served_are_named(monkeypatch, capsys):
    """As RecurrentGemma before transformers 5.23, whose caches have no layers for its states."""
    monkeypatch.setattr(rg_lru, "state_cache", lambda _: Cache(layers=[GrowingLayer(), GrowingLayer()]))
    monkeypatch.setattr(time, "NUM_NODES", (1,))
    found = models.by_kind(lambda model: time.times(model, 1, 0), ["RG-LRU", "RWKV-4"], *SIZES)
    assert list(found) == ["RWKV-4"]
    assert "RG-LRU is left out: trees of recurrent_gemma need transformers 5.23" in capsys.readouterr().out
