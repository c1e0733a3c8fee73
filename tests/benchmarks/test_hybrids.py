"""The benchmark of hybrids: rounding, and kinds that cannot be measured."""

from transformers import Cache

from benchmarks.hybrids import error, models
from benchmarks.hybrids.__main__ import tables
from treespec.hf.cache.growing import GrowingLayer
from treespec.hf.recurrent.layers import OwnStates

SIZES = (128, 2, 0)


def test_rounding_of_tree_passes():
    """In float32 as much as that of the model's own passes: a wrong logit would be thousands of times as much."""
    found = models.by_kind(lambda model: error.errors(model, 2, 0), ["Mamba-2", "lightning attention"], *SIZES)
    for dtypes in found.values():
        for ways in dtypes["float32"].values():
            assert all(
                0 < tree < 3 * own
                for tree, own in zip(ways["chain"] + ways["tree"], 2 * ways["whole text"], strict=True)
            )
    assert "from single tokens, float32" in tables(found)[0]


def test_kinds_that_are_not_served_are_named(monkeypatch, capsys):
    """As RecurrentGemma before transformers 5.23, whose caches have no layers for its states."""
    monkeypatch.setattr(OwnStates, "cache", lambda _: Cache(layers=[GrowingLayer(), GrowingLayer()]))
    found = models.by_kind(lambda model: error.errors(model, 1, 0), ["RG-LRU", "RWKV-4"], *SIZES)
    assert list(found) == ["RWKV-4"]
    assert "RG-LRU is left out: trees of recurrent_gemma need transformers 5.23" in capsys.readouterr().out
