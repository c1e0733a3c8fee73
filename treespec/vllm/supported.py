"""Which vLLM, which configuration and which requests are served; everything else is refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.version import __version__ as VERSION

from treespec.errors import UnsupportedModeError

VERSIONS = ("0.32", "0.33")
KV_UPDATE = "vllm::unified_kv_cache_update"
TOUCHED = {
    "_prepare_inputs": ["self", "scheduler_output", "num_scheduled_tokens"],
    "_sample": ["self", "logits", "spec_decode_metadata"],
    "_input_fits_in_drafter": ["self", "common_attn_metadata"],
    "initialize_kv_cache": ["self", "kv_cache_config", "is_profiling", "kv_cache_allocation_context"],
    "propose_draft_token_ids": [
        "self",
        "scheduler_output",
        "sampled_token_ids",
        "sampling_metadata",
        "hidden_states",
        "sample_hidden_states",
        "aux_hidden_states",
        "spec_decode_metadata",
        "common_attn_metadata",
        "slot_mappings",
    ],
}
"""Methods of vLLM's V1 model runner that are overridden, with their parameters."""


def check_version(version: str = VERSION, runner: Any = GPUModelRunner) -> None:
    """Raises `UnsupportedModeError`: another vLLM, or one whose touched methods are not the known ones."""
    if not version.startswith(tuple(f"{known}." for known in VERSIONS)):
        known = " and ".join(VERSIONS)
        raise UnsupportedModeError(f"treespec serves vLLM {known}, this is {version}: install one of these")
    for name, parameters in TOUCHED.items():
        method = getattr(runner, name, None)
        found = None if method is None else list(inspect.signature(method).parameters)
        if found != parameters:
            raise UnsupportedModeError(
                f"this vLLM {version} has {name}({', '.join(found or ['missing'])}), treespec knows "
                f"({', '.join(parameters)}): install an unmodified vLLM {' or '.join(VERSIONS)}"
            )


def check_config(config: VllmConfig) -> None:
    """Raises `UnsupportedModeError`: a configuration whose output would be wrong."""
    parallel, model, compilation = config.parallel_config, config.model_config, config.compilation_config
    refused = {
        "the V2 model runner: set VLLM_USE_V2_MODEL_RUNNER=0": config.use_v2_model_runner,
        "pipeline parallelism: set pipeline_parallel_size=1": parallel.pipeline_parallel_size > 1,
        "tensor parallelism, which was never tried: set tensor_parallel_size=1": parallel.tensor_parallel_size > 1,
        "context parallelism: set decode_context_parallel_size=1": _is_context_parallel(parallel),
        "dual batch overlap: leave it out": parallel.use_ubatching,
        "KV connectors: leave kv_transfer_config out": config.kv_transfer_config is not None,
        "models with M-RoPE": model.uses_mrope,
        "encoder-decoder models": model.is_encoder_decoder,
        "models with multi-head latent attention (MLA)": model.use_mla,
        "chunked local attention (Llama 4)": model.attention_chunk_size is not None,
        "reference sliding window attention": model.rswa_window is not None,
        "fast prefill of shared caches: leave kv_sharing_fast_prefill out": config.cache_config.kv_sharing_fast_prefill,
        "full CUDA graphs: set cudagraph_mode to PIECEWISE": compilation.cudagraph_mode.has_full_cudagraphs(),
        f"CUDA graphs that contain the writing of keys and values, which segments change: leave out splitting_ops and "
        f"use_inductor_graph_partition, or name {KV_UPDATE} in splitting_ops": _captures_cache(compilation),
        "processed logprobs: set logprobs_mode to raw_logprobs": model.logprobs_mode.startswith("processed"),
        "asynchronous scheduling: leave it out": bool(config.scheduler_config.async_scheduling),
    }
    for what, is_refused in refused.items():
        refuse(is_refused, what)


def check_cache(kv_cache_config: Any, kernel_block_sizes: list[int]) -> int:
    """The size of a block. Raises `UnsupportedModeError`: a cache of several groups, or of split blocks."""
    groups = kv_cache_config.kv_cache_groups
    refuse(len(groups) != 1, "models with several groups of KV caches (hybrid and state-space models)")
    size = groups[0].kv_cache_spec.block_size
    refuse(kernel_block_sizes != [size], f"blocks of {size} that the attention kernel splits into {kernel_block_sizes}")
    return size


def check_backends(backends: Iterable[Any]) -> None:
    """Raises `UnsupportedModeError`: an attention backend that knows no segments, which would read trees as chains.

    Backends that vLLM derives from ours (chunks, sinks) rearrange the requests before segments do.
    """
    for backend in backends:
        name = f"{backend.get_name()} ({backend.__name__})"
        refuse("has_segments" not in vars(backend), f"attention {name}: set it to FLASH_ATTN or TRITON_ATTN on CUDA")


def check_params(params: Any) -> None:
    """Raises `UnsupportedModeError`: sampling parameters of a request that are not served."""
    refuse(getattr(params, "thinking_token_budget", None) is not None, "thinking_token_budget")
    refuse(bool(getattr(params, "logprob_token_ids", None)), "logprob_token_ids")


def refuse(is_refused: bool, what: str) -> None:
    """Raises `UnsupportedModeError`: `is_refused` is True."""
    if is_refused:
        raise UnsupportedModeError(f"treespec's trees do not serve {what}, or leave speculative_config out")


def _captures_cache(compilation: Any) -> bool:
    """Whether graphs may contain `do_kv_cache_update`: they would replay the step that they were captured in."""
    has_op = KV_UPDATE in (compilation.splitting_ops or ())
    is_partitioned = compilation.use_inductor_graph_partition
    return compilation.cudagraph_mode.has_piecewise_cudagraphs() and bool(is_partitioned or not has_op)


def _is_context_parallel(parallel: Any) -> bool:
    names = ("decode_context_parallel_size", "prefill_context_parallel_size")
    return any(getattr(parallel, name, 1) > 1 for name in names)
