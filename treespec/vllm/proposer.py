"""The class that vLLM builds for `speculative_config["model"]`."""

from typing import Any


class Proposer:
    """What vLLM's method "custom_class" asks for; the drafts come from the model runner, which knows the requests."""

    def __init__(self, vllm_config: Any) -> None:
        """vllm_config: vLLM's, not read here."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is no model to load."""

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        """Raises `RuntimeError`: the worker is vLLM's own."""
        raise RuntimeError(
            "treespec drafts in its own worker: set worker_cls='treespec.vllm.worker.TreeCPUWorker' (TreeWorker on "
            "CUDA) and scheduler_cls='treespec.vllm.scheduler.TreeScheduler', or leave them out and give "
            "speculative_config={'method': 'treespec', ...}"
        )
