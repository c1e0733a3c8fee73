"""Tiny random models for a real vLLM."""

from __future__ import annotations

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
