"""Attention by the native function: sdpa's numbers under any mask, for the models and states that it serves only."""

import copy
import pickle
from dataclasses import replace
from itertools import product

import pytest
import torch
from helpers.tiny import prompt, tiny_llama

import treespec
from treespec.cpu.attention import FastAttention, NativeAttention, native_attention, serve_heads
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.heads.modules.layers import Attention, LayerConfig
from treespec.hf import TreeScorer
from treespec.hf.attention import folded

PARENTS = torch.tensor([[-1, 0, 0, 1, 2, 2, 0, 5]])


@pytest.fixture
def native(library):
    return native_attention(library)


def states(num_rows=2, num_heads=6, num_groups=2, num_nodes=5, num_slots=23, size=64):
    """Queries as a model has them, keys and values as a buffer has them, and a mask in which every node sees a slot."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(num_rows, num_nodes, num_heads, size, generator=generator).transpose(1, 2)
    buffers = torch.randn(2, num_rows, num_groups, num_slots + 9, size, generator=generator)[..., :num_slots, :]
    is_seen = torch.rand(num_rows, 1, num_nodes, num_slots, generator=generator) > 0.4
    is_seen[..., 0] = True
    mask = torch.zeros(is_seen.shape).masked_fill_(~is_seen, -torch.inf)
    return query, *buffers, mask


def expected(query, key, value, mask, scale):
    num_groups = query.shape[1] // key.shape[1]
    keys, values = (state.repeat_interleave(num_groups, 1) for state in (key, value))
    outputs = torch.nn.functional.scaled_dot_product_attention(
        query.double(), keys.double(), values.double(), attn_mask=None if mask is None else mask.double(), scale=scale
    )
    return outputs.transpose(1, 2)


@pytest.mark.parametrize(
    "shape",
    [{"num_nodes": 1}, {"num_nodes": 17}, {"num_slots": 700, "num_nodes": 16}, {"num_groups": 6},
     {"size": 128}, {"num_heads": 1, "num_groups": 1}, {"num_rows": 1, "num_slots": 1}],
)  # fmt: skip
@torch.no_grad()
def test_equals_sdpa(native, shape):
    query, key, value, mask = states(**shape)
    num_groups = query.shape[1] // key.shape[1]
    assert native.serves(query, key, value)
    for seen in (mask, mask[:1], None):  # One mask may serve all rows.
        panels = None if seen is None else native.as_panels(seen, num_groups)
        outputs = native.run(query, key, value, panels, 0.3)
        assert outputs.is_contiguous()
        assert (outputs - expected(query, key, value, seen, 0.3)).abs().max() < 5e-6
    assert native.as_panels(mask == 0, num_groups).equal(native.as_panels(mask, num_groups))


def attend(attention, rotary, mask, num_rows):
    """A head's attention outputs for a text, then for three nodes after it that see by a mask."""
    generator = torch.Generator().manual_seed(0)
    cache = DraftingCache(num_rows, torch.device("cpu"))
    found = []
    for length in (20, 3):
        inputs = torch.randn(num_rows, length, 48, generator=generator)
        positions = torch.arange(length)[None]
        cache.begin_pending(3) if found else cache.begin_commit([20] * num_rows, 20)
        rotation = rotary(positions, inputs.dtype)
        found.append(attention(inputs, rotation, mask if found else None, cache))
    return found


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("num_rows", [1, 2])
@torch.no_grad()
def test_attention_of_heads_equals_the_modules_own(folder, library, num_rows, share):
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
    config = LayerConfig(48, 64, 6, 2, 64, rope=rope, has_attention_bias=True)
    attention, rotary = Attention(config, 0), config.rotary()
    mask = torch.rand(num_rows, 1, 3, 23, generator=torch.Generator().manual_seed(1)) > 0.5
    mask[..., 0] = True
    plain = attend(attention, rotary, mask, num_rows)
    for model in (attention, copy.deepcopy(attention)):
        with treespec.optimize(model, is_quick=True):
            twin = pickle.loads(pickle.dumps(model))
            for each in (model, copy.deepcopy(model), twin):
                assert isinstance(vars(each)["forward"], FastAttention)
                for fast, own in zip(attend(each, rotary, mask, num_rows), plain, strict=True):
                    assert (fast - own).abs().max() < 1e-5
            with torch.enable_grad():
                assert attend(model, rotary, mask, num_rows)[1].requires_grad
        assert attend(model, rotary, mask, num_rows)[1].equal(plain[1])


@pytest.mark.parametrize("kind", [{"has_sinks": True}, {"has_head_norms": True}, {"head_dim": 8}])
def test_other_attention_of_heads_is_left_alone(native, kind):
    attention = Attention(replace(LayerConfig(48, 64, 6, 2, 64), **kind), 0)
    serve_heads(attention, native)
    assert "forward" not in vars(attention)


@torch.no_grad()
def test_large_scores_tiny_ones_and_none(native):
    """Scores far apart, as in trained models: weights that underflow are zeros; so is what sees no slot."""
    query, key, value, mask = states(num_nodes=2)
    mask[0, 0, 1] = -torch.inf
    mask[1, 0, 0, 1:] = torch.finfo(torch.float32).min  # As transformers masks.
    outputs = native.run(query, key, value, native.as_panels(mask, 3), 20.0)
    assert not outputs[0, 1].any()
    assert (outputs[1] - expected(query, key, value, mask, 20.0)[1]).abs().max() < 1e-5
    assert (outputs[1, 0] - value[1, :, 0].repeat_interleave(3, 0)).abs().max() < 1e-6


@torch.no_grad()
def test_what_is_not_a_number_stays_none(native):
    """A broken model is seen in tree passes as it is in others."""
    for state, number in product(range(3), (torch.nan, torch.inf)):
        given = states(num_rows=1)
        given[state][0, 0, 2, 5] = number
        given[3][..., 2] = 0
        outputs = native.run(*given[:3], native.as_panels(given[3], 3), 0.3)
        sdpa = expected(*given, 0.3)
        assert sdpa.isfinite().equal(outputs.isfinite())
        assert not sdpa.isfinite().all()


@torch.no_grad()
def test_bfloat16(native):
    """Sums are float32: nearer to the exact values than sdpa, which rounds the weights too."""
    *given, mask = states(num_nodes=16, num_slots=300, size=128)
    query, key, value = (state.bfloat16() for state in given)
    assert native.serves(query, key, value)
    outputs = native.run(query, key, value, native.as_panels(mask, 3), 0.3)
    assert outputs.dtype == torch.bfloat16
    exact = expected(query, key, value, mask, 0.3)
    tolerance = 0.5 * 2**-7 * exact.abs() + 1e-4
    assert ((outputs - exact).abs() <= tolerance).all()


@torch.no_grad()
def test_what_it_does_not_serve(native):
    query, key, value, _ = states()
    assert not native.serves(query.double(), key.double(), value.double())
    assert not native.serves(*(state[..., :40] for state in (query, key, value)))
    assert not native.serves(query, key.transpose(2, 3).contiguous().transpose(2, 3), value)
    assert not native.serves(query.half(), key.half(), value.half())
    shifted = torch.zeros(key.numel() + 1, dtype=torch.bfloat16)[1:].view(key.shape)
    assert not native.serves(query.bfloat16(), shifted, value.bfloat16())


@torch.no_grad()
def test_tree_passes_of_optimised_models_use_it(folder, library, monkeypatch):
    """Rows of two lengths, the logits of sdpa; undone by `restore`, and not copied with the model."""
    model = tiny_llama(hidden_size=256)
    ids = torch.cat([prompt(), prompt()])
    mask = torch.arange(ids.shape[1]) >= torch.tensor([[0], [3]])
    tokens = torch.randint(64, (2, PARENTS.shape[1]), generator=torch.Generator().manual_seed(1))
    calls = []
    run = NativeAttention.run
    monkeypatch.setattr(NativeAttention, "run", lambda *args: calls.append(1) or run(*args))

    def logits():
        scorer = TreeScorer(model)
        scorer.prefill(ids.masked_fill(~mask, 0), mask)
        return scorer.extend(tokens, PARENTS.expand(2, -1)).logits

    plain = logits()
    assert not calls
    with treespec.optimize(model):
        assert copy.deepcopy(model) not in folded._served
        fast = logits()
        assert len(calls) == model.config.num_hidden_layers
    assert (fast - plain).abs().max() < 1e-4 * plain.std()
    assert logits().equal(plain)
    assert len(calls) == model.config.num_hidden_layers
