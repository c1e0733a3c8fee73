"""Checks every replayed pass of examples/vllm_fixed_shapes.py inside its engine."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode
from vllm.forward_context import set_forward_context
from vllm_fixed_shapes import AsyncTreeScheduler, FixedRunner, FixedWorker

Layout = dict[str, tuple[Any, ...]]
PLANNED_BY_THE_KERNEL = "scheduler_metadata"
"""The list of work of the kernel for CPUs, whose size is not fixed."""


def layout(**parts: Any) -> Layout:
    """Address, shape, strides and type of all tensors in the parts."""
    return {
        name: (one.data_ptr(), tuple(one.shape), one.stride(), one.dtype)
        for part, value in parts.items()
        for name, one in _tensors(part, value)
    }


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif hasattr(value, "_asdict"):
        yield from _tensors(name, value._asdict())
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _tensors(f"{name}.{key}", one)
    elif hasattr(value, "__dict__"):
        kept = {key: one for key, one in vars(value).items() if key != PLANNED_BY_THE_KERNEL}
        yield from _tensors(name, kept)


class CheckedRunner(FixedRunner):
    """Compares what each replay reads with what was captured, and its hidden states with those of an eager pass."""

    @torch.inference_mode()
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._replayed = []
        output = super().execute_model(scheduler_output, *args, **kwargs)
        for desc in self._replayed:
            self._check(desc, self.execute_model_state)
        return output

    def initialize_kv_cache(self: Any, *args: Any, **kwargs: Any) -> None:
        self.checks, self._captured, self._replayed = Counter(), {}, []
        super().initialize_kv_cache(*args, **kwargs)
        replay = self.cudagraph_manager.run_fullgraph
        self.cudagraph_manager.run_fullgraph = lambda desc: self._replayed.append(desc) or replay(desc)

    def _check(self: Any, desc: Any, state: Any) -> None:
        batch, metadata, slots = state.input_batch, state.attn_metadata, state.slot_mappings_by_layer
        inputs = {"input_ids": batch.input_ids, "positions": batch.positions}
        found = layout(metadata=metadata, slots=slots, inputs=inputs, output=state.hidden_states)
        captured = next(iter(self.attn_groups[0])).get_metadata_builder().captured[batch.num_reqs_after_padding]
        first = layout(metadata=dict.fromkeys(metadata, captured))
        expected = self._captured.setdefault(desc.num_tokens, found | first)
        expanded = self._eager(metadata, slots, inputs, desc)
        self.checks["replays"] += 1
        self.checks["padded replays"] += batch.num_reqs < batch.num_reqs_after_padding
        self.checks["moved"] += found != expected
        self.checks["tensors"] = len(found)
        self.checks["unequal"] += not torch.equal(expanded, state.hidden_states)

    def _eager(self: Any, metadata: Any, slots: Any, inputs: Any, desc: Any) -> Tensor:
        context: dict[str, Any] = {"num_tokens": desc.num_tokens, "cudagraph_runtime_mode": CUDAGraphMode.NONE}
        with set_forward_context(metadata, self.vllm_config, slot_mapping=slots, **context):
            found = self.model(**inputs, intermediate_tensors=None)
        return found[0] if isinstance(found, tuple) else found  # With a head, hidden states of other layers follow.


class CheckedWorker(FixedWorker):
    """The worker with these checks."""

    runner = CheckedRunner

    def tree_stats(self) -> dict[str, float]:
        return {**super().tree_stats(), **self.model_runner.checks, **AsyncOnCPUs.counts}


class AsyncOnCPUs(AsyncTreeScheduler):
    """The asynchronous scheduler where vLLM's configuration for CPUs has switched asynchronous steps off.

    The engine reads the setting after it has built its scheduler. Counts the steps planned before the tokens of the
    last one were known.
    """

    counts: ClassVar = Counter()

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        vllm_config.scheduler_config.async_scheduling = True
        super().__init__(vllm_config, *args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.counts["planned ahead"] += any(request.num_output_placeholders for request in self.running)
        return super().schedule(*args, **kwargs)
