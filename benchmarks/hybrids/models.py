"""Random models of every kind of recurrence, and the passes that they make by themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from treespec.errors import UnsupportedModelError
from treespec.hf.introspect import CACHE_ARGUMENTS, CACHE_NAME

_SIZES = {"vocab_size": 512, "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8}


def _types(kind: str, num_layers: int) -> list[str]:
    """Passes of hybrids from a cache ask for an attention layer."""
    return ["full_attention", *[kind] * (num_layers - 1)]


KINDS: dict[str, tuple[str, Callable[[int, int], dict[str, Any]]]] = {
    "short convolution": ("lfm2", lambda size, layers: {"layer_types": _types("conv", layers)}),
    "gated delta rule": (
        "qwen3_5_text",
        lambda size, layers: {
            "layer_types": _types("linear_attention", layers),
            "linear_num_key_heads": size // 128,
            "linear_num_value_heads": size // 64,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        },
    ),
    "delta rule, decays per channel": (
        "kimi_linear",
        lambda size, layers: {
            "layer_types": _types("linear_attention", layers),
            "linear_head_dim": 64,
            "linear_num_heads": size // 64,
            "first_k_dense_replace": layers,
            "q_lora_rank": None,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
        },
    ),
    "Mamba-2": (
        "mamba2",
        lambda size, layers: {"num_heads": size // 32, "head_dim": 64, "state_size": 64, "n_groups": 1, "expand": 2},
    ),
    "Mamba-1": ("mamba", lambda size, layers: {"state_size": 16, "expand": 2}),
    "lightning attention": (
        "minimax",
        lambda size, layers: {
            "layer_types": _types("linear_attention", layers),
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
    "RG-LRU": ("recurrent_gemma", lambda size, layers: {"block_types": ["attention", *["recurrent"] * (layers - 1)]}),
    "RWKV-4": ("rwkv", lambda size, layers: {}),
}
"""By kind of recurrence: a model type, and what its configuration needs for a hidden size and a number of layers."""

PADDED = ("gated delta rule", "delta rule, decays per channel", "Mamba-2")
"""Kinds whose own passes pad tokens to chunks of 64 or more, whatever their number."""


@contextmanager
def chunks_of(model: PreTrainedModel, num_tokens: int) -> Iterator[None]:
    """Inside the model's own passes have chunks of this many tokens, so that passes over these pad nothing."""
    file = sys.modules[type(model).__module__]
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(getattr(module, "chunk_size", None), int):
                stack.enter_context(mock.patch.object(module, "chunk_size", num_tokens))
        for name in ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention"):
            if hasattr(file, name):
                function = partial(getattr(file, name), chunk_size=num_tokens)
                stack.enter_context(mock.patch.object(file, name, function))
        yield


def by_kind(measure: Callable[[PreTrainedModel], Any], kinds: Iterable[str], *sizes: int) -> dict[str, Any]:
    """What is measured of a model of each kind, `sizes`: see `build`; kinds that are not served are named instead."""
    found: dict[str, Any] = {}
    for kind in kinds:
        try:
            found[kind] = measure(build(kind, *sizes))
        except UnsupportedModelError as error:
            print(f"{kind} is left out: {error}")
    return found


def build(kind: str, size: int, num_layers: int, seed: int) -> PreTrainedModel:
    """A model with random weights and logits of a standard deviation of 2; of hybrids the first layer is attention."""
    model_type, options = KINDS[kind]
    sizes = {"hidden_size": size, "intermediate_size": 2 * size, "num_hidden_layers": num_layers, **_HEADS}
    config = AutoConfig.for_model(model_type, **_SIZES | sizes | options(size, num_layers))
    config._experts_implementation = "eager"  # The others take no float64.
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        ids = torch.randint(3, 512, (1, 32))
        head: Any = model.get_output_embeddings()
        head.weight.mul_(2 / model(ids, use_cache=False).logits.std())
    return model


def own_passes(model: PreTrainedModel, prompt: Tensor) -> Callable[[Tensor], Tensor]:
    """The model's own passes after a prompt, each behind the one before: tokens [1, n] to logits [1, n, V]."""
    # RecurrentGemma returns no cache.
    is_silent = model.config.model_type == "recurrent_gemma"
    kept: dict[str, Any] = {CACHE_NAME: DynamicCache(config=model.config)} if is_silent else {}

    def run(tokens: Tensor) -> Tensor:
        output = model(tokens, **kept, use_cache=True)
        names = [name for name in (*CACHE_ARGUMENTS, "state") if getattr(output, name, None) is not None]
        kept.update({CACHE_NAME if name in CACHE_ARGUMENTS else name: getattr(output, name) for name in names[:1]})
        return output.logits

    run(prompt)
    return run
