"""Tiny random models for a real vLLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from benchmarks.vllm.engine import MODEL


def tiny_llama(folder: Path, vocab: int, seed: int = 3) -> Any:
    """A random model of two layers, written to `folder`; its distributions are far from uniform."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = LlamaConfig(
        vocab_size=vocab, num_key_value_heads=1, head_dim=32, initializer_range=0.12, max_position_embeddings=128,
        bos_token_id=None, eos_token_id=None, **sizes,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def tiny_smollm2(folder: Path) -> Path:
    """A tiny random model with the vocabulary and the tokenizer of SmolLM2; its folder."""
    if not (folder / "config.json").exists():
        tiny_llama(folder, 49152)
        for file in MODEL.glob("*token*"):
            shutil.copy(file, folder)
    return folder


def tiny_lora(folder: Path, seed: int = 4, rank: int = 8) -> Path:
    """A random LoRA adapter of `tiny_llama`'s queries and output projections, written to `folder`."""
    from safetensors.torch import save_file

    rng, sizes = torch.Generator().manual_seed(seed), {"q_proj": (64, 64), "o_proj": (64, 64)}
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for layer in range(2):
        for name, (inner, outer) in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = 0.3 * torch.randn(rank, inner, generator=rng)
            weights[f"{prefix}.lora_B.weight"] = 0.3 * torch.randn(outer, rank, generator=rng)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(sizes), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
