"""Engines of examples/vllm_fixed_shapes.py that count its replays and the steps that are planned ahead."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from vllm_fixed_shapes import AsyncTreeScheduler, FixedRunner, FixedWorker


class CountedRunner(FixedRunner):
    """Counts replays, and those of batches that were padded."""

    def initialize_kv_cache(self: Any, *args: Any, **kwargs: Any) -> None:
        self.counts = Counter()
        super().initialize_kv_cache(*args, **kwargs)
        replay = self.cudagraph_manager.run_fullgraph

        def counted(desc: Any) -> Any:
            self.counts["replays"] += 1
            self.counts["padded replays"] += self.input_batch.num_reqs * self.decode_query_len < desc.num_tokens
            return replay(desc)

        self.cudagraph_manager.run_fullgraph = counted


class CountedWorker(FixedWorker):
    """The worker with these counts."""

    runner = CountedRunner

    def tree_stats(self) -> dict[str, float]:
        return {**super().tree_stats(), **self.model_runner.counts, **AsyncOnCPUs.counts}


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
