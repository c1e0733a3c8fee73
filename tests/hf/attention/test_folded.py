"""Attention with folded query heads: the same numbers as sdpa, in this thread's passes only, config left as it was."""

from unittest.mock import Mock

import pytest
import torch
from helpers.rounds import prefilled
from helpers.zoo import build, prompts
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from treespec.hf import TreeScorer
from treespec.hf.attention import folded
from treespec.hf.attention.folded import NAME, FoldedAttention, folded_attention

PARENTS = torch.tensor([[-1, 0, 0, 1, 2, 2]])


@pytest.fixture
def module():
    attention = nn.Module().eval()
    attention.num_key_value_groups, attention.is_causal = 3, True  # pyright: ignore
    return attention


def states(num_rows=2, num_nodes=5, num_keys=23, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(num_rows, num_nodes, 6, 8, generator=generator).transpose(1, 2)
    buffers = torch.randn(2, num_rows, 2, 40, 8, generator=generator)[..., :num_keys, :]
    mask = torch.rand(num_rows, 1, num_nodes, num_keys, generator=generator) > 0.4
    mask[..., 0] = True
    return query.to(dtype), *buffers.to(dtype), mask


def run_folded(*args, **kwargs):
    """As during a pass."""
    folded._local.current = folded._Pass()
    try:
        return folded_attention(*args, **kwargs)[0]
    finally:
        folded._local.current = None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("is_additive", [False, True], ids=["bool", "additive"])
@torch.no_grad()
def test_equals_sdpa(module, dtype, is_additive, monkeypatch):
    query, key, value, mask = states(dtype=dtype)
    single = sdpa_attention_forward(module, query[:, :, :1], key, value, None)[0]
    given = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min) if is_additive else mask
    expected = sdpa_attention_forward(module, query, key, value, given, scaling=0.3)[0]
    monkeypatch.setattr(folded, "sdpa_attention_forward", None)
    output = run_folded(module, query, key, value, given, scaling=0.3, is_causal=None, sliding_window=7)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    assert output.shape == expected.shape
    assert output.is_contiguous()
    assert (output - expected).abs().max() <= tolerance
    assert (run_folded(module, query[:, :, :1], key, value, None) - single).abs().max() <= tolerance


def test_what_needs_more_than_a_mask_goes_to_sdpa(module, monkeypatch):
    """Other arguments, unequal heads, masks by head, causal prompts, and passes of others."""
    sdpa = Mock(side_effect=lambda *args, **kwargs: (args[1].transpose(1, 2), None))
    monkeypatch.setattr(folded, "sdpa_attention_forward", sdpa)
    query, key, value, mask = states()
    for extra in ({"s_aux": mask}, {"softcap": 30.0}, {"position_bias": mask}, {"dropout": 0.5}):
        run_folded(module, query, key, value, mask, **extra)
        assert extra.items() <= sdpa.call_args.kwargs.items()
    run_folded(module, query, key, value[..., :4], mask)
    run_folded(module, query, key, value, mask.expand(-1, 6, -1, -1))
    run_folded(module, query, key, value, None)
    folded_attention(module, query, key, value, mask)  # Outside of a pass.
    assert sdpa.call_count == 8


def test_folding_serves_the_models_it_is_made_for(monkeypatch):
    """Grouped heads, sliding windows and static caches are folded in every layer."""
    calls = []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(a[0].shape) or attend(*a, **k)
    )
    for name, max_cache_len in (("llama", None), ("llama", 64), ("mistral", None), ("gemma3_text", None)):
        model = build(name)
        scorer = prefilled(TreeScorer(model, max_cache_len=max_cache_len), prompts(1, 12))
        calls.clear()
        scorer.extend(prompts(1, 6, seed=1), PARENTS)
        assert [shape[1:3] for shape in calls] == [(2, 12)] * len(calls)
        assert len(calls) == model.config.num_hidden_layers


def test_eager_models_and_compiled_ones_run_as_they_are():
    model = build("llama", "eager")
    folding = FoldedAttention(model)
    assert not folding.is_supported
    with folding.running():
        assert model.config._attn_implementation == "eager"


def test_the_configuration_is_restored_after_errors_and_nested_passes():
    model = build("llama")
    folding = FoldedAttention(model)

    def fail():
        with folding.running(), folding.running():
            assert model.config._attn_implementation == NAME
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.config._attn_implementation == "sdpa"
    assert not folded._num_passes
