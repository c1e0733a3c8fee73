"""Which models are refused, which decode by chains or plainly, and what detection leaves unchanged."""

import pytest
import torch
from helpers.tiny import lookups
from helpers.zoo import build
from transformers import (
    AutoModel,
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    xLSTMConfig,
    xLSTMForCausalLM,
)

import treespec
from treespec.errors import UnsupportedModelError
from treespec.hf.models.capability import detect
from treespec.protocols import Capability

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BART = BartConfig(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32,
                  encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64)  # fmt: skip


REFUSED = {
    "both directions": (lambda: BertLMHeadModel(BertConfig(**SMALL)), "both directions"),
    "no head": (lambda: AutoModel.from_config(LlamaConfig(**SMALL)), "no language modelling head"),
    "no cache": (
        lambda: OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=64, n_embd=32, n_layer=1, n_head=4)),
        "no transformers cache",
    ),
    "a cache of its own": (
        lambda: xLSTMForCausalLM(xLSTMConfig(vocab_size=64, hidden_size=32, num_blocks=2, num_heads=4)),
        "xLSTMForCausalLM fails on a few tokens with a transformers cache",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_models_that_cannot_be_served(make, message):
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    with pytest.raises(UnsupportedModelError, match=message):
        detect(model.eval())


def test_generate_refuses_encoder_decoder_models_by_that_name():
    model, ids = BartForConditionalGeneration(BART), torch.tensor([[5, 6, 7]])
    with pytest.raises(UnsupportedModelError, match="is an encoder-decoder model"):
        model.generate(ids, custom_generate=lookups(), max_new_tokens=4)
    with pytest.raises(UnsupportedModelError, match="is an encoder-decoder model"):
        treespec.generate(model, ids, lookups(), max_new_tokens=4)


def test_a_decoder_made_of_an_encoder_is_served():
    assert detect(BertLMHeadModel(BertConfig(**SMALL, is_decoder=True)).eval()).capability == Capability.TREE
    assert BartForCausalLM(BART).config.is_encoder_decoder is False


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "mamba2", "falcon_h1"])
def test_low_precision_hides_no_wrong_chains(name):
    """transformers' mamba continues a cache with several tokens wrongly; in bfloat16 by little more than rounding."""
    expected = detect(build(name)).capability
    assert "LinearAttention" in detect(build(name)).reason
    assert expected == (Capability.PLAIN if name in ("mamba", "falcon_mamba") else Capability.CHAIN)
    assert all(detect(build(name).to(dtype)).capability == expected for dtype in (torch.bfloat16, torch.float16))


def test_detection_leaves_no_trace_and_runs_once():
    model = build("qwen3_next").train()
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    state = torch.get_rng_state()
    first = detect(model)
    count = len(calls)
    assert count > 0
    assert detect(model) is first
    assert len(calls) == count
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
