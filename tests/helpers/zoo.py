"""Tiny random models of many architectures, built from configuration classes alone in milliseconds.

Every model has a few layers of a small width, random weights from a fixed seed, logits of standard deviation 1 or more
and, where the architecture has one, a sliding window of 8: shorter than the tests' prompts, so that a mask that forgets
the window is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from treespec.protocols import Capability

WINDOW = 8
VOCAB_SIZE = 96
MIN_LOGIT_STD = 1.5

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Architecture:
    """One architecture of the zoo.

    Attributes:
        model_type: transformers' name.
        options: what the configuration needs besides the common sizes; None takes a common size away.
        capability: what treespec is expected to verify with it.
        attention: the attention implementation that it runs with.
        name: of a variant, when one model type stands in the zoo more than once.
    """

    model_type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    capability: Capability = Capability.TREE
    attention: str = "sdpa"
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.model_type


_HEADS = {"head_dim": 8}
_WINDOW = {"sliding_window": WINDOW}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED = _EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
MLA = _ROUTED | {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 8,
    "first_k_dense_replace": 1,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
_GEMMA_N = {
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size_per_layer_input": 8,
    "num_hidden_layers": 4,
    "layer_types": _MIXED["layer_types"] * 2,
    "num_kv_shared_layers": 2,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 16}
_HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
_DELTA = _HYBRID | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "head_dim": 8,
}
_SHARED = {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 8}
_NO_LIMIT = {"time_step_min": 1e-9}
"""transformers' chunks limit step sizes, its single steps do not: uncached passes differ by that."""
INDEXED = {"index_head_dim": 8, "index_n_heads": 4, "index_topk": 256}

_INKLING = {
    "layer_types": ["hybrid_sliding", "hybrid"],
    "unpadded_vocab_size": VOCAB_SIZE,
    "sliding_window_size": WINDOW,
    "swa_head_dim": 8,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
}

_KEYS_ONLY: tuple[Architecture, ...] = (
    # One attention over everything, rotary or learned positions.
    Architecture("llama"),
    Architecture("arcee"),
    Architecture("apertus"),
    Architecture("biogpt"),
    Architecture("bitnet"),
    Architecture("codegen", {"rotary_dim": 8}, attention="eager"),
    Architecture("cohere", {"logit_scale": 1.0}),
    Architecture("diffllama"),
    Architecture("ernie4_5"),
    Architecture("falcon", {"num_kv_heads": 4, "new_decoder_architecture": False}),
    Architecture("gemma", _HEADS),
    Architecture("glm", _HEADS),
    Architecture("glm4", _HEADS),
    Architecture("gpt2"),
    Architecture("gpt_bigcode"),
    Architecture("gpt_neox"),
    Architecture("gptj", {"rotary_dim": 8}, attention="eager"),
    Architecture("granite"),
    Architecture("helium", _HEADS),
    Architecture("hunyuan_v1_dense", _HEADS),
    Architecture("jais2"),
    Architecture("nanochat"),
    Architecture("nemotron"),
    Architecture("olmo"),
    Architecture("olmo2"),
    Architecture("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    Architecture("persimmon"),
    Architecture("phi"),
    Architecture("qwen2"),
    Architecture("qwen3", _HEADS),
    Architecture("seed_oss", _HEADS),
    Architecture("smollm3", {"no_rope_layers": [1, 0]}),
    Architecture("stablelm"),
    Architecture("xglm", {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}, attention="eager"),
    # Mixtures of experts.
    Architecture("ernie4_5_moe", {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32}),
    Architecture("flex_olmo", _EXPERTS),
    Architecture("glm4_moe", _ROUTED | _HEADS),
    Architecture("granitemoe", _EXPERTS),
    Architecture("hunyuan_v1_moe", _EXPERTS | {"moe_topk": 2} | _HEADS),
    Architecture("minimax_m2", _EXPERTS | _HEADS),
    Architecture("olmoe", _EXPERTS),
    Architecture("qwen2_moe", _EXPERTS | {"shared_expert_intermediate_size": 32}),
    Architecture("qwen3_moe", _EXPERTS | _HEADS),
    # Latent attention.
    Architecture("deepseek_v2", MLA | {"topk_method": "greedy", "routed_scaling_factor": 1.0}),
    Architecture("deepseek_v3", MLA),
    Architecture("minicpm3", MLA),
    # Sliding windows, in every layer or in some.
    Architecture("mistral", _WINDOW),
    Architecture("ministral", _WINDOW | _HEADS),
    Architecture("ministral3", _WINDOW | _HEADS),
    Architecture("mixtral", _WINDOW | _EXPERTS),
    Architecture("phi3", _WINDOW),
    Architecture("phimoe", _WINDOW | _EXPERTS),
    Architecture("starcoder2", _WINDOW),
    Architecture("afmoe", _WINDOW | _MIXED | _ROUTED | _HEADS),
    Architecture("cohere2", _WINDOW | _MIXED | {"logit_scale": 1.0}),
    Architecture("granite_swa", _WINDOW, attention="eager"),
    Architecture("cwm", _WINDOW | _MIXED | _HEADS),
    Architecture("exaone4", _WINDOW | _MIXED),
    Architecture("gemma2", _WINDOW | _MIXED | _HEADS, attention="eager"),
    Architecture("gemma3_text", _WINDOW | _MIXED | _HEADS),
    Architecture(
        "gemma3n_text",
        _WINDOW
        | _HEADS
        | _GEMMA_N
        | {"laurel_rank": 8, "intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4},
    ),
    Architecture("gemma4_text", _WINDOW | _HEADS | _GEMMA_N | {"global_head_dim": 8}),
    Architecture("gpt_oss", _WINDOW | _MIXED | _EXPERTS | _HEADS, attention="eager"),
    Architecture("olmo3", _WINDOW | _MIXED),
    Architecture("vaultgemma", _WINDOW | _MIXED | _HEADS, attention="eager"),
    # Attention that counts slots: alibi, windows and temperatures by slot.
    Architecture("bloom", attention="eager"),
    Architecture("falcon", {"alibi": True, "num_kv_heads": 4}, name="falcon_alibi"),
    Architecture("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256}, attention="eager"),
    Architecture(
        "gpt_neo",
        {
            "num_layers": 2,
            "num_heads": 4,
            "num_hidden_layers": None,
            "num_attention_heads": None,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
        },
        attention="eager",
    ),
    Architecture(
        "llama4_text",
        _EXPERTS
        | _HEADS
        | {
            "intermediate_size_mlp": 48,
            "attention_chunk_size": WINDOW,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
        },
    ),
)

STATEFUL: tuple[Architecture, ...] = (
    Architecture("bamba", _MAMBA | {"attn_layer_indices": [1]}),
    Architecture("falcon_h1", _MAMBA | {"mamba_d_ssm": 64}),
    Architecture("granitemoehybrid", _MAMBA | _EXPERTS | _HYBRID | {"shared_intermediate_size": 32}),
    Architecture(
        "kimi_linear",
        MLA | _HYBRID | {"q_lora_rank": None, "head_dim": None, "linear_head_dim": 8, "linear_num_heads": 4},
    ),
    Architecture("lfm2", {"layer_types": ["conv", "full_attention"]}),
    Architecture("lfm2_moe", _EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    Architecture(
        "mamba2",
        {"num_heads": 8, "head_dim": 8, "state_size": 8, "expand": 2, "n_groups": 1, "chunk_size": 16},
        attention="eager",
    ),
    Architecture(
        "nemotron_h",
        {
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "attention", "mlp"],
            "ssm_state_size": 8,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            **_NO_LIMIT,
            "n_groups": 2,
            "chunk_size": 16,
            "head_dim": 8,
        },
    ),
    Architecture("inkling_text", _ROUTED | _HEADS | _INKLING),
    Architecture("olmo_hybrid", _DELTA),
    Architecture("qwen3_5_text", _DELTA),
    Architecture("qwen3_next", _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 32}),
    Architecture("falcon_mamba", {"state_size": 8, "expand": 2}, attention="eager"),
    Architecture(
        "jamba",
        _EXPERTS | {"mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    ),
    Architecture("mamba", {"state_size": 8, "expand": 2}, attention="eager"),
    Architecture("bailing_hybrid", MLA | _HYBRID | {"linear_head_dim": 8, "linear_num_heads": 4}),
    Architecture("lara_mini", _DELTA | _EXPERTS),
    Architecture("lfm3", {"layer_types": ["conv", "full_attention"]}),
    Architecture("qwen3_5_moe_text", _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 32}),
    Architecture(
        "zamba",
        _SHARED | {"n_mamba_heads": 2, "mamba_dt_rank": 4, "attention_head_dim": 16, "use_mamba_kernels": False},
    ),
    Architecture(
        "zamba2",
        _SHARED
        | {
            "n_mamba_heads": 4,
            "mamba_headdim": 16,
            "mamba_ngroups": 1,
            "num_mem_blocks": 1,
            "chunk_size": 16,
            "use_mem_rope": False,
            "num_key_value_heads": 4,
            **_NO_LIMIT,
        },
    ),
    # States elsewhere than in a transformers cache of the common kind; `RWKV` has them too.
    Architecture("minimax", _EXPERTS | _HEADS | {"layer_types": _HYBRID["layer_types"][::-1], "block_size": 16}),
    Architecture("recurrent_gemma", {"num_hidden_layers": 3, "attention_window_size": WINDOW}),
)
"""Recurrent and hybrid models, scored by trees."""

ARCHITECTURES = (
    *_KEYS_ONLY,
    *STATEFUL,
    # States of other kinds: chains by snapshot and replay.
    Architecture("glm_moe_dsa", MLA | INDEXED, Capability.CHAIN),
)

RWKV = Architecture("rwkv", {"rescale_every": 1, "max_position_embeddings": None}, attention="eager")
"""For single texts: in its own batches transformers mixes the rows up, and takes padding for text."""

_QSA = {
    "layer_types": ["linear_attention", "indexed_attention"],
    "shared_expert_intermediate_size": 32,
    "hc_count": 2,
    "hc_lowrank": 8,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 256,
    "indexer_compress_ratio": 4,
}
_NGRAMS = {
    "ple_layer_ids": [1],
    "ngram_vocab_size_base": 50,
    "heads_per_ngram": 2,
    "split_ngram_parts": 2,
    "make_ngram_vocab_size_divisible_by": 2,
}
BY_CHAINS: tuple[Architecture, ...] = (
    Architecture("inkling2_text", _EXPERTS | _HEADS | _INKLING, Capability.CHAIN, attention="eager"),
    Architecture("inkling2_loop_text", _EXPERTS | _HEADS | _INKLING, Capability.CHAIN, attention="eager"),
    Architecture("qwen4_exp_text", _DELTA | _EXPERTS | _QSA, Capability.CHAIN),
    Architecture("qwen4_exp_text", _DELTA | _EXPERTS | _QSA | _NGRAMS, Capability.CHAIN, name="qwen4_exp_ngrams"),
    Architecture("zaya", _EXPERTS | _HEADS | {"num_experts_per_tok": 1}, Capability.CHAIN),
)
"""With states of kinds that have no form for trees, or with attention that takes no tree mask."""

BY_NAME = {str(architecture): architecture for architecture in (*ARCHITECTURES, RWKV, *BY_CHAINS)}


def _of_name(architecture: Architecture | str) -> Architecture:
    return BY_NAME[architecture] if isinstance(architecture, str) else architecture


def config_of(architecture: Architecture | str) -> PreTrainedConfig:
    architecture = _of_name(architecture)
    sizes = {name: value for name, value in (SIZES | dict(architecture.options)).items() if value is not None}
    return AutoConfig.for_model(architecture.model_type, **sizes)


def build(architecture: Architecture | str, attention: str | None = None) -> PreTrainedModel:
    """A tiny model in float32 and evaluation mode, the same at every call; torch's global generator is left alone."""
    chosen = attention or _of_name(architecture).attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = config_of(architecture)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=chosen, dtype=torch.float32).eval()
    _sharpen(model)
    return model


def prompts(num_rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random prompts int64 [num_rows, length] without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (num_rows, length), generator=generator)


@torch.no_grad()
def _sharpen(model: PreTrainedModel) -> None:
    """Scale the head so that the logits' standard deviation is at least MIN_LOGIT_STD, and random biases are small."""
    std = model(input_ids=prompts(2, 24), use_cache=False).logits.std()
    model.get_output_embeddings().weight.mul_(MIN_LOGIT_STD / std)
