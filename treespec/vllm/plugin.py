"""The entry point `vllm.general_plugins`: `speculative_config={"method": "treespec", ...}` for `LLM` and servers."""

from __future__ import annotations

import copy
import functools
import logging
import pkgutil
from dataclasses import asdict
from typing import Any

from treespec.errors import ConfigError
from treespec.vllm.options import METHOD, PROPOSER, Options, asked_of

logger = logging.getLogger("vllm.treespec")

SCHEDULER = "treespec.vllm.scheduler.TreeScheduler"
CPU_WORKER, WORKER = "treespec.vllm.worker.TreeCPUWorker", "treespec.vllm.worker.TreeWorker"
CPU_BLOCK = 32  # The smallest block of vLLM's CPU attention: scratch blocks are copied whole.
FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""vLLM's own arguments for single keys of `speculative_config`, whose names may also be written with dashes."""


class Proposer:
    """The class for vLLM's method "custom_class"; the model runner of our worker drafts, as it knows the requests."""

    def __init__(self, vllm_config: Any) -> None:
        """vllm_config: vLLM's, whose worker is read. Raises `ConfigError`: it is not ours."""
        if not hasattr(pkgutil.resolve_name(vllm_config.parallel_config.worker_cls), "tree_stats"):
            own = f"set worker_cls={CPU_WORKER!r} (TreeWorker on CUDA) and scheduler_cls={SCHEDULER!r}"
            raise ConfigError(f"treespec drafts in its own worker: {own}, or leave both out with 'method': {METHOD!r}")

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is no model to load."""

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        """Raises `RuntimeError`: vLLM asks for this method to exist, and the runner of our worker never calls it."""
        raise RuntimeError("treespec's model runner drafts by itself: nothing proposes next to it")


def register() -> None:
    """Entry point that vLLM calls in each of its processes, maybe more than once, before it has arguments.

    vLLM 0.32 has a fixed list of methods and no hook for another: the parser learns ours, and one method is wrapped,
    which does nothing where another is asked for. The third wrapper waits for the first engine with trees.
    """
    from vllm.engine.arg_utils import EngineArgs

    _wrap(EngineArgs, "create_engine_config", _with_trees)
    _wrap(EngineArgs, "add_cli_args", _with_method)


def configure(engine_args: Any, is_cpu: bool) -> None:
    """Replace the method "treespec" in vLLM's arguments by its class paths; other methods are left alone.

    What trees need and the user left open is set, with a line in the log. docs/vllm.md has the same by hand.

    Raises `ConfigError`: another worker or scheduler, a key given twice, options that nothing reads, or see `asked_of`.
    """
    config, more = engine_args.speculative_config or {}, engine_args.additional_config or {}
    given = {key.replace("-", "_"): value for key, value in config.items()}
    flags = {flag: value for flag in FLAGS if (value := getattr(engine_args, flag, None)) is not None}
    if (options := asked_of({**given, **{FLAGS[flag]: value for flag, value in flags.items()}})) is None:
        if METHOD in more and engine_args.scheduler_cls is None:
            raise ConfigError("additional_config['treespec'] starts nothing alone: give these in speculative_config")
        return
    twice = [f"{flag} and speculative_config[{FLAGS[flag]!r}]" for flag in flags if FLAGS[flag] in given]
    twice += ["keys with - and with _"] * (len(given) < len(config))
    twice += ["speculative_config and additional_config['treespec']"] * (METHOD in more)
    if twice:
        raise ConfigError(f"{twice[0]} mean the same: leave one of them out")
    for flag in flags:
        setattr(engine_args, flag, None)
    for name, needed in {"scheduler_cls": SCHEDULER, "worker_cls": CPU_WORKER if is_cpu else WORKER}.items():
        if (found := getattr(engine_args, name)) not in (None, "auto", needed):
            raise ConfigError(f"method 'treespec' needs {name}={needed!r}, got {found!r}: leave {name} out")
        setattr(engine_args, name, needed)
    engine_args.speculative_config = {"model": PROPOSER, "num_speculative_tokens": options.num_speculative_tokens}
    engine_args.additional_config = {**more, METHOD: asdict(options)}
    if is_cpu:
        engine_args.block_size = engine_args.block_size or CPU_BLOCK
    elif not engine_args.enforce_eager and engine_args.compilation_config.cudagraph_mode is None:
        from vllm.config import CUDAGraphMode

        engine_args.compilation_config = copy.copy(engine_args.compilation_config)
        engine_args.compilation_config.cudagraph_mode = CUDAGraphMode.PIECEWISE
        logger.info("treespec has set cudagraph_mode=PIECEWISE, as steps have a sequence per segment of a tree")


def _share_blocks(config: Any) -> None:
    """One block table for layers with and without a window. Recurrent layers need the manager of several tables."""
    if not config.model_config.is_hybrid:
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
        if len(set(getattr(config.model_config.hf_text_config, "layer_types", None) or ())) > 1:
            why = "as trees need one block table for layers with and without a window; all keep the whole text"
            other = "--no-disable-hybrid-kv-cache-manager saves that memory, with chains in place of trees"
            logger.info("treespec has set disable_hybrid_kv_cache_manager=True, %s; %s", why, other)


def options_of(config: Any) -> Options:
    """The options in a vLLM configuration. Raises `ConfigError`: see `Options`."""
    given = (config.additional_config or {}).get(METHOD, {})
    if not isinstance(given, dict):
        raise ConfigError(f"additional_config[{METHOD!r}] must be a mapping of options, got {given!r}")
    return Options.from_config({**given, "num_speculative_tokens": config.speculative_config.num_speculative_tokens})


def _wrap(owner: type, name: str, wrapper: Any) -> None:
    """Replace a method by `wrapper`, which gets the original first, once."""
    original = getattr(owner, name)
    if not hasattr(original, "is_treespec"):
        method = functools.wraps(original)(lambda *args, **kwargs: wrapper(original, *args, **kwargs))
        vars(method)["is_treespec"] = True
        setattr(owner, name, method)


def _with_method(original: Any, parser: Any) -> Any:
    """vLLM's parser, whose `--spec-method` takes ours, too."""
    made = original(parser)
    for option in made._actions:
        if option.dest == "spec_method" and option.choices:
            option.choices = [*option.choices, METHOD]
    return made


def _with_trees(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    from vllm.platforms import current_platform

    configure(self, current_platform.is_cpu())
    config = original(self, *args, **kwargs)
    if getattr(config.speculative_config, "model", None) == PROPOSER:
        from vllm.sampling_params import SamplingParams

        from treespec.vllm.supported import check_config

        _wrap(SamplingParams, "_validate_spec_decode", _with_served_params)
        if self.disable_hybrid_kv_cache_manager is None:
            _share_blocks(config)
        check_config(config)
    return config


def _with_served_params(original: Any, self: Any, speculative_config: Any) -> Any:
    """Trees serve min-p and logit bias, too. Raises `VLLMValidationError`: servers answer others with status 500."""
    if getattr(speculative_config, "model", None) != PROPOSER:
        return original(self, speculative_config)
    from vllm.exceptions import VLLMValidationError

    from treespec.vllm.supported import unserved

    if lost := unserved(self):
        raise VLLMValidationError(f"treespec's trees do not serve {lost}: leave it out, or speculative_config")
    return None
