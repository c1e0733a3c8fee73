"""vLLM's workers with trees: they register the attention backends and give the model runner its trees."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import _cached_get_attn_backend
from vllm.v1.worker.gpu_worker import Worker

from treespec.errors import ConfigError
from treespec.vllm.plugin import PROPOSER, SCHEDULER
from treespec.vllm.runner import TreeRunner
from treespec.vllm.scheduler import TreeScheduler
from treespec.vllm.supported import check_config, check_version


def check_classes(config: VllmConfig) -> None:
    """Raises `ConfigError`: our worker without our proposer or our scheduler, which keeps the scratch blocks back."""
    speculation = config.speculative_config
    if speculation is None or speculation.model != PROPOSER:
        raise ConfigError(
            f"the worker with trees needs speculative_config={{'model': '{PROPOSER}', 'num_speculative_tokens': 15}}, "
            f"got {'none' if speculation is None else repr(speculation.method)}: give it, or leave worker_cls out"
        )
    scheduler = config.scheduler_config.get_scheduler_cls()
    if not issubclass(scheduler, TreeScheduler):
        raise ConfigError(
            f"the worker with trees needs scheduler_cls={SCHEDULER!r}, got "
            f"{scheduler.__name__}, which would give the scratch blocks to requests"
        )


class TreeStart:
    """What both workers do before and after vLLM's own start."""

    vllm_config: Any
    model_runner: Any

    def start_with_trees(self, backends: dict[str, str]) -> None:
        """`backends` maps vLLM's names to ours. Raises `TreespecError`: see the checks."""
        check_version()
        check_classes(self.vllm_config)
        check_config(self.vllm_config)
        for name, path in backends.items():
            register_backend(AttentionBackendEnum[name], path)
        _cached_get_attn_backend.cache_clear()  # An engine without trees may have been built in this process.

    def give_trees(self) -> None:
        """Let the built runner have trees."""
        runner = self.model_runner
        runner.__class__ = type("TreeModelRunner", (TreeRunner, type(runner)), {})
        runner.start_trees()

    def tree_stats(self) -> dict[str, float]:
        """What the trees did so far, for `collective_rpc`."""
        return self.model_runner.stats.as_dict()


class TreeWorker(TreeStart, Worker):
    """On CUDA. Never run: no test has had a GPU."""

    def init_device(self) -> None:
        module = "treespec.vllm.cuda_attention"
        self.start_with_trees(
            {"FLASH_ATTN": f"{module}.SegmentFlashBackend", "TRITON_ATTN": f"{module}.SegmentTritonBackend"}
        )
        super().init_device()
        self.give_trees()


if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker

    from treespec.vllm.cpu_lora import keep_base_rows

    class TreeCPUWorker(TreeStart, CPUWorker):
        """On a CPU."""

        def init_device(self) -> None:
            self.start_with_trees({"CPU_ATTN": "treespec.vllm.cpu_attention.SegmentCPUBackend"})
            super().init_device()
            self.give_trees()

        def load_model(self, *args: Any, **kwargs: Any) -> None:
            super().load_model(*args, **kwargs)
            keep_base_rows(self.model_runner)
