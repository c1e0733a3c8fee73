"""LoRA on CPUs: what belongs to the base model is left unchanged, whatever adapters share its batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class BaseRowsKept(PunicaWrapperCPU):
    """vLLM's adapters on CPUs, but rows of the base model keep their values.

    vLLM marks these rows by the index -1. Its CUDA kernels skip them; its CPU products index the stacked weights with
    it, which gives the base model the adapter of the last slot (vLLM 0.32).
    """

    def add_lora_linear(self, y: Tensor, *args: Any, **kwargs: Any) -> None:
        _keep(y, self.token_lora_indices, lambda: super(BaseRowsKept, self).add_lora_linear(y, *args, **kwargs))

    def add_lora_embedding(self, y: Tensor, *args: Any, **kwargs: Any) -> None:
        _keep(y, self.token_lora_indices, lambda: super(BaseRowsKept, self).add_lora_embedding(y, *args, **kwargs))

    def add_lora_logits(self, y: Tensor, *args: Any, **kwargs: Any) -> None:
        _keep(y, self.sampler_indices, lambda: super(BaseRowsKept, self).add_lora_logits(y, *args, **kwargs))


def keep_base_rows(runner: Any) -> None:
    """Let the adapters of a loaded model leave rows of the base model alone; nothing happens without LoRA."""
    if runner.lora_config is not None:
        for wrapper in runner.lora_manager._adapter_manager.punica_wrapper_mapping.values():
            wrapper.__class__ = BaseRowsKept


def _keep(y: Tensor, indices: Tensor, add: Callable[[], None]) -> None:
    rows = y.view(-1, y.shape[-1])
    is_base = indices < 0
    kept = rows[is_base]
    add()
    rows[is_base] = kept
