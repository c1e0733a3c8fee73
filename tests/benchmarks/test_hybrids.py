"""The benchmark of hybrids: own passes in chunks as long as the tree, and kinds that cannot be measured."""

import sys
from contextlib import nullcontext

import pytest
import torch
from transformers import Cache

from benchmarks.hybrids import error, models, time
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


def test_rounding_of_tree_passes():
    """In float32 as much as that of the model's own passes: a wrong logit would be thousands of times as much."""
    found = models.by_kind(lambda model: error.errors(model, 2, 0), ["Mamba-2", "lightning attention"], *SIZES)
    for dtypes in found.values():
        for ways in dtypes["float32"].values():
            assert all(
                0 < tree < 3 * own
                for tree, own in zip(ways["chain"] + ways["tree"], 2 * ways["whole text"], strict=True)
            )
    title, header, rows = TABLES["error"](found)[0]
    assert "from single tokens, float32" in title
    assert header[2:] == ["depths 1 to 4", "depths 5 to 16", "depths 17 to 48"]
    assert [row[1] for row in rows] == 2 * ["chain", "tree", "whole text", "chain / whole text", "tree / whole text"]


def test_kinds_that_are_not_served_are_named(monkeypatch, capsys):
    """As RecurrentGemma before transformers 5.23, whose caches have no layers for its states."""
    monkeypatch.setattr(rg_lru, "state_cache", lambda _: Cache(layers=[GrowingLayer(), GrowingLayer()]))
    monkeypatch.setattr(time, "NUM_NODES", (1,))
    found = models.by_kind(lambda model: time.times(model, 1, 0), ["RG-LRU", "RWKV-4"], *SIZES)
    assert list(found) == ["RWKV-4"]
    assert "RG-LRU is left out: trees of recurrent_gemma need transformers 5.23" in capsys.readouterr().out
