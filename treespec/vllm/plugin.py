"""The entry point `vllm.general_plugins`: `speculative_config={"method": "treespec", ...}` for `LLM` and servers."""

from __future__ import annotations

import copy
import functools
import logging
from dataclasses import asdict
from typing import Any

from treespec.errors import ConfigError, UnsupportedModeError
from treespec.vllm.options import METHOD, Options

logger = logging.getLogger("vllm.treespec")

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
    """What vLLM calls in each of its processes, maybe more than once.

    vLLM has no hook between its arguments and its configuration, so one method is wrapped. The other wrapper waits for
    the first engine that uses the method.
    """
    from vllm.engine.arg_utils import EngineArgs

    _wrap(EngineArgs, "create_engine_config", _with_trees)


def configure(engine_args: Any, is_cpu: bool) -> None:
    """Replace the method "treespec" in vLLM's arguments by its class paths; other methods are left alone.

    What trees need and the user left open is set, with one line in the log.

    Raises `ConfigError`: another worker or scheduler was given, a setting that trees do not serve, or see `Options`.
    The same by hand: `worker_cls`, `scheduler_cls`, `speculative_config={"model": "treespec.vllm.Proposer",
    "num_speculative_tokens": n}` and `additional_config={"treespec": {...}}`.
    """
    given = engine_args.speculative_config
    method = given.get("method") if isinstance(given, dict) else None
    if isinstance(method, str) and method != METHOD and method.lower() == METHOD:
        raise ConfigError(f"vLLM's methods are written in lower case: 'method': {METHOD!r}, got {method!r}")
    if method != METHOD:
        return
    classes = {"scheduler_cls": SCHEDULER, "worker_cls": CPU_WORKER if is_cpu else WORKER}
    for name, needed in classes.items():
        if (asked := getattr(engine_args, name)) not in (None, "auto", needed):
            raise ConfigError(f"method 'treespec' needs {name}={needed!r}, got {asked!r}: leave {name} out")
    options = Options.from_config({name: value for name, value in given.items() if name != "method"})
    number = options.num_speculative_tokens
    engine_args.speculative_config = {"model": PROPOSER, "num_speculative_tokens": number}
    engine_args.additional_config = {**(engine_args.additional_config or {}), METHOD: asdict(options)}
    for name, needed in classes.items():
        setattr(engine_args, name, needed)
    _set_defaults(engine_args, is_cpu)


def _set_defaults(args: Any, is_cpu: bool) -> None:
    """What trees need, where the user left it open. Raises `ConfigError`: the user asked for something else."""
    chosen = []
    if is_cpu:
        args.block_size = args.block_size or CPU_BLOCK
    elif not args.enforce_eager:
        mode = args.compilation_config.cudagraph_mode
        if mode is None:
            from vllm.config import CUDAGraphMode

            args.compilation_config = copy.copy(args.compilation_config)
            args.compilation_config.cudagraph_mode = CUDAGraphMode.PIECEWISE
            chosen.append("cudagraph_mode=PIECEWISE, as a step has as many sequences as its trees have segments")
        elif mode.has_full_cudagraphs():
            raise ConfigError(
                f"trees change their shape from step to step, which full CUDA graphs ({mode.name}) cannot: write "
                '--compilation-config \'{"cudagraph_mode": "PIECEWISE"}\', or leave cudagraph_mode out'
            )
    if args.async_scheduling:
        raise ConfigError(
            "trees are drafted from the tokens of the last step, which asynchronous scheduling does not wait for: "
            "write --no-async-scheduling (async_scheduling=False), or leave it out"
        )
    if args.async_scheduling is None:
        args.async_scheduling = False
        chosen.append("async_scheduling=False, as drafts are made of the last step's tokens")
    if args.disable_hybrid_kv_cache_manager is None:
        args.disable_hybrid_kv_cache_manager = True
        chosen.append("disable_hybrid_kv_cache_manager=True, as layers with and without a window share one block table")
    if chosen:
        logger.info("treespec has set %s", "; ".join(chosen))


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
    if isinstance(self.speculative_config, dict) and self.speculative_config.get("model") == PROPOSER:
        from vllm.sampling_params import SamplingParams

        _wrap(SamplingParams, "_validate_spec_decode", _with_served_params)
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
