"""The entry point `vllm.general_plugins`: `speculative_config={"method": "treespec", ...}` for `LLM` and servers."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

from treespec.errors import ConfigError, UnsupportedModeError
from treespec.vllm.options import METHOD, Options

PROPOSER = "treespec.vllm.Proposer"
SCHEDULER = "treespec.vllm.scheduler.TreeScheduler"
CPU_WORKER, WORKER = "treespec.vllm.worker.TreeCPUWorker", "treespec.vllm.worker.TreeWorker"
CPU_BLOCK = 32
"""The smallest block of vLLM's CPU attention: scratch blocks are copied whole."""


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


def register() -> None:
    """What vLLM calls in each of its processes, maybe more than once."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import SamplingParams

    _wrap(EngineArgs, "create_engine_config", _with_trees)
    _wrap(SamplingParams, "_validate_spec_decode", _with_served_params)


def configure(engine_args: Any, is_cpu: bool) -> None:
    """Replace the method "treespec" in vLLM's arguments by its class paths.

    Raises `ConfigError`: another worker or scheduler was given, or see `Options`. The same by hand: `worker_cls`,
    `scheduler_cls`, `speculative_config={"model": "treespec.vllm.Proposer", "num_speculative_tokens": n}` and
    `additional_config={"treespec": {...}}`.
    """
    given = engine_args.speculative_config
    if not isinstance(given, dict) or given.get("method") != METHOD:
        return
    worker = CPU_WORKER if is_cpu else WORKER
    _check_free("scheduler_cls", engine_args.scheduler_cls, SCHEDULER)
    _check_free("worker_cls", engine_args.worker_cls, worker)
    options = Options.from_config({name: value for name, value in given.items() if name != "method"})
    engine_args.speculative_config = {
        "model": PROPOSER,
        "num_speculative_tokens": options.num_speculative_tokens,
    }
    engine_args.additional_config = {**(engine_args.additional_config or {}), METHOD: asdict(options)}
    engine_args.scheduler_cls = SCHEDULER
    engine_args.worker_cls = worker
    if is_cpu:
        engine_args.block_size = engine_args.block_size or CPU_BLOCK


def _check_free(name: str, given: Any, needed: str) -> None:
    if given not in (None, "auto", needed):
        raise ConfigError(f"method 'treespec' needs {name}={needed!r}, got {given!r}: leave {name} out")


def options_of(vllm_config: Any) -> Options:
    """The options in a vLLM configuration. Raises `ConfigError`: see `Options`."""
    given = (vllm_config.additional_config or {}).get(METHOD, {})
    number = vllm_config.speculative_config.num_speculative_tokens
    return Options.from_config({**given, "num_speculative_tokens": number})


def _wrap(owner: type, name: str, wrapper: Any) -> None:
    """Replace a method by `wrapper`, which gets the original first, once."""
    original = getattr(owner, name)
    if hasattr(original, "is_treespec"):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    vars(method)["is_treespec"] = True
    setattr(owner, name, method)


def _with_trees(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    from vllm.platforms import current_platform

    configure(self, current_platform.is_cpu())
    return original(self, *args, **kwargs)


def _with_served_params(original: Any, self: Any, speculative_config: Any) -> Any:
    """vLLM refuses min-p and logit bias with drafts; trees serve them, and refuse others.

    With vLLM's own error: servers answer others with status 500.
    """
    if getattr(speculative_config, "model", None) != PROPOSER:
        return original(self, speculative_config)
    from vllm.exceptions import VLLMValidationError

    from treespec.vllm.supported import check_params

    try:
        check_params(self)
    except UnsupportedModeError as error:
        raise VLLMValidationError(str(error)) from error
