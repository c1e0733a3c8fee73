"""vLLM's workers with trees: they register the attention backends and give the model runner its trees."""

from __future__ import annotations

from typing import Any

from vllm.version import __version__ as VERSION

from treespec.vllm.touched import check_version

# ruff: noqa: E402
check_version(VERSION)  # Before vLLM's modules are imported: what another version has not is named.

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import _cached_get_attn_backend
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from treespec.errors import ConfigError
from treespec.vllm import attention
from treespec.vllm.plugin import PROPOSER, SCHEDULER
from treespec.vllm.runner import TreeRunner
from treespec.vllm.scheduler import TreeScheduler
from treespec.vllm.supported import check_config


def check_classes(config: VllmConfig) -> None:
    """Raises `ConfigError`: our worker without our proposer or our scheduler, which keeps the scratch blocks back."""
    model, scheduler = getattr(config.speculative_config, "model", None), config.scheduler_config.get_scheduler_cls()
    if model != PROPOSER or not issubclass(scheduler, TreeScheduler):
        raise ConfigError(
            f"the worker with trees needs speculative_config={{'model': {PROPOSER!r}, 'num_speculative_tokens': 15}} "
            f"and scheduler_cls={SCHEDULER!r}, got {model} and {scheduler.__name__}: give both, or leave worker_cls out"
        )


class WithTrees:
    """Mixin before vLLM's worker in the MRO: the `backends` of attention.py by vLLM's names, and the class `runner`."""

    def init_device(self: Any) -> None:
        """vLLM's, with the segments' backends. Raises `TreespecError`: see the checks."""
        check_classes(self.vllm_config)
        check_config(self.vllm_config)
        for name in self.backends:
            register_backend(AttentionBackendEnum[name], f"{attention.__name__}.{name}")
        _cached_get_attn_backend.cache_clear()  # An engine without trees may have been built in this process.
        super().init_device()  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(self.model_runner, TreeRunner):  # vLLM's worker on CPUs does not ask for it.
            self.model_runner = self._make_model_runner()

    def _make_model_runner(self: Any) -> Any:
        return self.runner(self.vllm_config, self.device)

    def tree_stats(self: Any) -> dict[str, float]:
        """Statistics of the trees so far, for `collective_rpc`; see `ServingStats`."""
        return self.model_runner.stats.as_dict()


class TreeModelRunner(TreeRunner, GPUModelRunner):
    """vLLM's runner on CUDA with trees."""


class TreeWorker(WithTrees, Worker):
    """The worker on CUDA, which `benchmarks/vllm/cuda.py` compares with plain vLLM on a GPU."""

    backends = ("FLASH_ATTN", "TRITON_ATTN")
    runner = TreeModelRunner


if current_platform.is_cpu():
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker

    class TreeCPUModelRunner(TreeRunner, CPUModelRunner):
        """vLLM's runner on a CPU with trees."""

    class TreeCPUWorker(WithTrees, CPUWorker):
        """The worker on a CPU."""

        backends = ("CPU_ATTN",)
        runner = TreeCPUModelRunner
