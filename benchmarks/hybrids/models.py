"""Random models of every kind of recurrence, and the passes that they make by themselves; one that writes texts."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from treespec.errors import UnsupportedModelError
from treespec.hf.introspect import CACHE_ARGUMENTS, CACHE_NAME

_SIZES = {"vocab_size": 512, "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8}
SUCCESSORS = (1.0, 0.92, 0.85, 0.78)
"""Weights of a token's likeliest successors in `qwen_with_successors`."""


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


def by_kind(measure: Callable[[PreTrainedModel], Any], kinds: Iterable[str], *sizes: int) -> dict[str, Any]:
    """Measure a model of each kind, `sizes`: see `build`; kinds that are not served are named instead."""
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


def qwen_with_successors(size: int, num_layers: int, seed: int) -> Any:
    """A random hybrid with the layers of Qwen3.5, three gated delta nets to one attention.

    A token's likeliest successors are drawn once and built into the output layer; what the layers add chooses among
    them. So texts seldom repeat themselves, and what followed a token before is drafted rightly now and then.
    """
    config = Qwen3_5TextConfig(
        vocab_size=512,
        hidden_size=size,
        intermediate_size=3 * size,
        num_hidden_layers=num_layers,
        layer_types=["full_attention" if (n + 1) % 4 == 0 else "linear_attention" for n in range(num_layers)],
        num_attention_heads=size // 64,
        num_key_value_heads=size // 128,
        head_dim=64,
        linear_num_key_heads=size // 128,
        linear_num_value_heads=size // 64,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model: Any = Qwen3_5ForCausalLM(config).eval()
    with torch.no_grad():
        inputs, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        inputs.normal_()
        successors = [torch.randperm(config.vocab_size) for _ in SUCCESSORS]
        head.zero_()
        for weight, order in zip(SUCCESSORS, successors, strict=True):
            head[order] += weight * inputs / size**0.5
    return model
