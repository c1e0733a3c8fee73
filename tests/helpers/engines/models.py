"""Tiny random models for a real vLLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from helpers.engines.engine import MODEL

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}


def _random(folder: Path, model_type: str, vocab: int, seed: int = 3, **options: Any) -> Any:
    """A random model written to `folder`, whose distributions are far from uniform; `options` differ from `SIZES`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = AutoConfig.for_model(model_type, vocab_size=vocab, initializer_range=0.12, **ends, **SIZES | options)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def tiny_llama(folder: Path, vocab: int, seed: int = 3) -> Any:
    """A Llama."""
    return _random(folder, "llama", vocab, seed, head_dim=32)


def tiny_gemma3(folder: Path, vocab: int) -> Any:
    """Two layers with a window of eight tokens and one without."""
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    options = {"num_hidden_layers": 3, "head_dim": 32, "sliding_window": 8, "pad_token_id": None}
    return _random(folder, "gemma3_text", vocab, layer_types=layers, **options)


def tiny_gpt_oss(folder: Path, vocab: int) -> Any:
    """A mixture of experts with two layers that have a window of 16 tokens and two without."""
    layers = ["sliding_attention", "full_attention"] * 2
    options = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256}
    options |= {"sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": None}
    return _random(folder, "gpt_oss", vocab, layer_types=layers, **options)


def tiny_granite(folder: Path, vocab: int) -> Any:
    """A Granite 4 with Mamba-2 layers and attention in turn."""
    layers, states = ["mamba", "attention"] * 2, {"n_heads": 4, "d_head": 32, "d_state": 16, "n_groups": 1}
    options = {"num_hidden_layers": 4, "shared_intermediate_size": 64, "num_local_experts": 0, "num_experts_per_tok": 0}
    options |= {f"mamba_{name}": size for name, size in states.items()} | {"pad_token_id": None}
    return _random(folder, "granitemoehybrid", vocab, layer_types=layers, **options)


def tiny_deepseek(folder: Path, vocab: int) -> Any:
    """A DeepSeek-V2 of two dense layers, with the sizes of latents that vLLM's CPU kernel knows."""
    latents = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32}
    experts = {"first_k_dense_replace": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    experts |= {"moe_intermediate_size": 64, "n_group": 1, "topk_group": 1}
    options = {"num_key_value_heads": 2, "v_head_dim": 32, "pad_token_id": None} | latents | experts
    return _random(folder, "deepseek_v2", vocab, **options)


def tiny_smollm2(folder: Path) -> Path:
    """A tiny random model with the vocabulary and the tokenizer of SmolLM2; its folder."""
    if not (folder / "config.json").exists():
        tiny_llama(folder, 49152)
        for file in MODEL.glob("*token*"):
            shutil.copy(file, folder)
    return folder


ADAPTED = ("q_proj", "v_proj", "o_proj", "down_proj")
"""Linear layers that `random_adapters` change."""


def random_adapters(folder: Path, model: Path, number: int) -> list[Path]:
    """Folders of random LoRA adapters in PEFT's format, of rank 4 or 8; each second one changes the logits too.

    The change of a weight has 0.3 of its deviation. `model` is a folder of Llama's layers.
    """
    from safetensors.torch import load_file, save_file

    weights, paths = load_file(model / "model.safetensors"), [folder / f"adapter{index}" for index in range(number)]
    for index, path in enumerate(paths):
        rank, generator = 4 * (1 + index % 2), torch.Generator().manual_seed(index)
        path.mkdir(parents=True, exist_ok=True)
        adapted = ADAPTED + ("lm_head",) * (index % 2)
        changed = {name: weight for name, weight in weights.items() if name.split(".")[-2] in adapted}
        tensors = {}
        for name, weight in changed.items():
            key, (rows, columns) = f"base_model.model.{name.removesuffix('.weight')}", weight.shape
            size = 0.3 * float(weight.float().std()) / rank**0.5
            tensors[f"{key}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
            tensors[f"{key}.lora_B.weight"] = size * torch.randn(rows, rank, generator=generator)
        save_file(tensors, path / "adapter_model.safetensors")
        layers = sorted({name.split(".")[-2] for name in changed})
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none"}
        (path / "adapter_config.json").write_text(json.dumps({**config, "target_modules": layers}))
    return paths


def tiny_mimo(folder: Path) -> Path:
    """A random MiMo, which has Qwen 2's layers, with a random MTP layer and the zoo's vocabulary; its folder."""
    from helpers import mtp_files

    mtp_files.write(folder, "mimo", **SIZES)
    return _as_mimo(folder)


def counting_mimo(folder: Path, vocab: int) -> Path:
    """A MiMo that writes the next number after every token, and an MTP layer that finds it from the target's state.

    Token x is the unit vector x and a last number, which is 1 for all and which the target's last norm takes away.
    Attention and feed-forward layers add nothing. The MTP layer turns the state of the token before into that of its
    successor, and of the token itself reads the last number: without the state's it drafts token 0. So its drafts are
    right only next to the states before that norm, and from the second level on only next to its own outputs.
    """
    from helpers.mtp_files import MIMO
    from safetensors.torch import load_file, save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = SIZES["hidden_size"]
    Qwen2ForCausalLM(Qwen2Config(vocab_size=vocab, tie_word_embeddings=False, **SIZES)).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, weight in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    units, first, last = torch.eye(vocab, size), 0, size - 1
    embedding = units.index_fill(1, torch.tensor([last]), 1.0)
    successor = torch.zeros(size, size)
    successor[:vocab, :vocab] = torch.eye(vocab).roll(1, 0)
    block = {
        MIMO["block"].format(layer=0) + name.split(".", 3)[3]: w for name, w in tensors.items() if ".layers.0." in name
    }
    norms = {MIMO[name].format(layer=0): torch.ones(size) for name in ("embedding_norm", "hidden_norm", "norm")}
    weights = torch.cat([successor, torch.zeros(size, size)], 1)
    weights[first, last], weights[first, size + last], weights[last, size + last] = -9.0, 9.0, 1.0
    projection = {MIMO["projection"].format(layer=0): weights}
    norm = torch.ones(size).index_fill(0, torch.tensor([last]), 0.0)
    shared = {"model.norm.weight": norm, "model.embed_tokens.weight": embedding, "lm_head.weight": units.roll(1, 0)}
    made = {**tensors, **{name: weight.clone() for name, weight in block.items()}, **norms, **projection, **shared}
    save_file(
        {name: weight.contiguous() for name, weight in made.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    return _as_mimo(folder)


def _as_mimo(folder: Path) -> Path:
    """vLLM's MiMo; its own configuration is code of its publisher's, which transformers does not have."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "bos_token_id": None, "eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
