"""LoRA on CPUs: what belongs to the base model is left unchanged, whatever adapters share its batch."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

INDICES = {
    "add_lora_linear": "token_lora_indices",
    "add_lora_embedding": "token_lora_indices",
    "add_lora_logits": "sampler_indices",
}
"""By vLLM's method that adds adapters to rows, which adapter each row has; -1: the base model's."""


def keep_base_rows(runner: Any) -> None:
    """Let the adapters of a loaded model leave rows of the base model alone; nothing happens without LoRA.

    vLLM's CUDA kernels skip these rows; its CPU products index the stacked weights with -1, which gives the base model
    the adapter of the last slot (vLLM 0.32).
    """
    if runner.lora_config is not None:
        for wrapper in runner.lora_manager._adapter_manager.punica_wrapper_mapping.values():
            for name, indices in INDICES.items():
                setattr(wrapper, name, partial(_add, wrapper, getattr(wrapper, name), indices))


def _add(wrapper: Any, add: Any, indices: str, y: Tensor, *args: Any, **kwargs: Any) -> None:
    rows, is_base = y.view(-1, y.shape[-1]), getattr(wrapper, indices) < 0
    kept = rows[is_base]
    add(y, *args, **kwargs)
    rows[is_base] = kept
