"""Whole texts of a hybrid with the layers of Qwen3.5, 100 million random weights: trees, chains and plain decoding.

A token's four likeliest successors are drawn once and built into the output layer; what the layers add chooses among
them. So texts seldom repeat themselves, and what followed a token before is drafted rightly now and then. Prompts are
texts that the model wrote by sampling.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any
from unittest import mock

import torch
from rich.progress import track
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

import treespec
from treespec.hf.models import make_scorer as making
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.policies import Chain

VOCAB, SUCCESSORS = 512, (1.0, 0.92, 0.85, 0.78)
OPTIONS: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": VOCAB + 1}


def build(size: int, num_layers: int, seed: int) -> Any:
    """Three gated delta nets to one attention."""
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
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
        successors = [torch.randperm(VOCAB) for _ in SUCCESSORS]
        head.zero_()
        for weight, order in zip(SUCCESSORS, successors, strict=True):
            head[order] += weight * inputs / size**0.5
    return model


def _by_snapshots() -> AbstractContextManager[Any]:
    """Inside models with states decode chains row by row and read accepted tokens again."""

    def make(facts: Any, detection: Any, hidden_layers: Any, prompt: Any) -> RecurrentScorer:
        return RecurrentScorer(facts, capability=detection.capability, hidden_layers=hidden_layers, prompt=prompt)

    return mock.patch.object(making, "_for_states", make)


def contestants() -> dict[str, tuple[Any, Callable[[], AbstractContextManager[Any]]]]:
    """What `custom_generate` gets, an object each that serves all texts, as in use; and what is patched meanwhile."""

    def lookups(tree: Any) -> Any:
        return treespec.TreeSpeculation([treespec.TokenRecycling(), treespec.SuffixLookup()], tree=tree)

    return {
        "plain": (None, nullcontext),
        "chain of 4, snapshots and replay": (lookups(Chain(4)), _by_snapshots),
        "chain of 4": (lookups(Chain(4)), nullcontext),
        "tree of 8": (lookups(8), nullcontext),
        "tree of 16": (lookups(16), nullcontext),
    }


def _decode(model: Any, ids: Tensor, num_new: int, way: Any) -> tuple[float, Tensor, float]:
    """Seconds, the output, and new tokens per row and pass."""
    speculation, patched = way
    given = {} if speculation is None else {"custom_generate": speculation}
    with patched():
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_new, **OPTIONS, **given)
        seconds = time.perf_counter() - start
    return seconds, out, 1.0 if speculation is None else speculation.stats.mean_acceptance_length


def _compare(model: Any, prompts: list[Tensor], num_new: int) -> dict[str, Any]:
    everyone = contestants()
    found: dict[str, list[tuple[float, bool, float]]] = {name: [] for name in everyone}
    for number, ids in enumerate(track(prompts)):
        names = list(everyone)
        plain = None
        for name in names if number % 2 == 0 else [names[0], *names[:0:-1]]:
            seconds, out, per_pass = _decode(model, ids, num_new, everyone[name])
            plain = out if plain is None else plain
            found[name].append((seconds, torch.equal(out, plain), per_pass))
    own = [seconds for seconds, _, _ in found["plain"]]
    return {
        name: {
            "ms_per_token": 1e3 * median(seconds for seconds, _, _ in runs) / num_new,
            "speed": median(base / seconds for base, (seconds, _, _) in zip(own, runs, strict=True)),
            "tokens_per_pass": sum(per_pass for _, _, per_pass in runs) / len(runs),
            "same_as_plain": sum(is_same for _, is_same, _ in runs),
            "texts": len(runs),
        }
        for name, runs in found.items()
    }


def measure(size: int, num_layers: int, num_texts: int, seed: int, num_new: int = 64) -> dict[str, Any]:
    """Single texts, and the same by four; the first of each is read but not counted."""
    model = build(size, num_layers, seed)
    generator = torch.Generator().manual_seed(seed)
    begun = torch.randint(3, VOCAB, (num_texts, 8), generator=generator)
    written = model.generate(begun, max_new_tokens=120, **OPTIONS | {"do_sample": True, "top_k": 0})
    prompts = list(written.split(1))
    batches = [torch.cat(prompts[start : start + 4]) for start in range(0, num_texts, 4)]
    for ids in (prompts[0], batches[0]):  # Models are checked at their first use, alone and in batches.
        for way in contestants().values():
            _decode(model, ids, 8, way)
    return {
        "weights": sum(weight.numel() for weight in model.parameters()),
        "single texts": _compare(model, prompts, num_new),
        "batches of four": _compare(model, batches, num_new),
    }
