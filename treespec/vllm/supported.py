"""Which configuration and which requests are served; everything else is refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LOGITSPROCS_GROUP

from treespec.errors import UnsupportedModeError
from treespec.vllm.options import METHOD

KV_UPDATE = "vllm::unified_kv_cache_update"


def check_config(config: VllmConfig) -> None:
    """Raises `UnsupportedModeError`: a configuration whose output would be wrong."""
    parallel, model, compilation = config.parallel_config, config.model_config, config.compilation_config
    graphs, is_split = compilation.cudagraph_mode, KV_UPDATE in (compilation.splitting_ops or ())
    has_writes = graphs.has_piecewise_cudagraphs() and (compilation.use_inductor_graph_partition or not is_split)
    is_cpu, is_other = current_platform.is_cpu(), model.is_hybrid or model.use_mla
    is_allowed = is_cpu or (config.additional_config or {}).get(METHOD, {}).get("allow_untested") is True
    refused = {
        "devices but CPUs and CUDA": not (is_cpu or current_platform.is_cuda()),
        "the V2 model runner: set VLLM_USE_V2_MODEL_RUNNER=0": config.use_v2_model_runner,
        "pipeline parallelism: set tensor_parallel_size instead": parallel.pipeline_parallel_size > 1,
        "data parallelism: start a server for each replica, with data_parallel_size=1": parallel.data_parallel_size > 1,
        "context parallelism: set decode_context_parallel_size=1": parallel.decode_context_parallel_size > 1,
        "context parallelism: set prefill_context_parallel_size=1": parallel.prefill_context_parallel_size > 1,
        "dual batch overlap: leave it out": parallel.use_ubatching,
        "KV connectors: leave kv_transfer_config out": config.kv_transfer_config is not None,
        "pooling: leave runner out": model.runner_type != "generate",
        "models with M-RoPE": model.uses_mrope,
        "encoder-decoder models": model.is_encoder_decoder,
        "models without attention (Mamba)": model.is_attention_free,
        "chunked local attention (Llama 4)": model.attention_chunk_size is not None,
        "reference sliding window attention": model.rswa_window is not None,
        "fast prefill of shared caches: leave kv_sharing_fast_prefill out": config.cache_config.kv_sharing_fast_prefill,
        "recurrent layers on CPUs, where vLLM's own drafts fail or change its output": model.is_hybrid and is_cpu,
        "MLA on CPUs, where who shares a batch changes plain vLLM's output": model.use_mla and is_cpu,
        'recurrent layers and MLA, untested on this device: write "allow_untested": true': is_other and not is_allowed,
        f"full CUDA graphs ({graphs.name}), as trees change their shape from step to step: write --compilation-config "
        '\'{"cudagraph_mode": "PIECEWISE"}\', or leave cudagraph_mode out': graphs.has_full_cudagraphs(),
        # They would write into the slots of the step that they were captured in.
        f"CUDA graphs that contain the writing of keys and values, which segments change: leave out splitting_ops and "
        f"use_inductor_graph_partition, or name {KV_UPDATE} in splitting_ops": has_writes,
        "processed logprobs: set logprobs_mode to raw_logprobs": model.logprobs_mode.startswith("processed"),
        f"entry points {LOGITSPROCS_GROUP}, which vLLM leaves out": bool(entry_points(group=LOGITSPROCS_GROUP)),
        "asynchronous scheduling: write --no-async-scheduling": bool(config.scheduler_config.async_scheduling),
    }
    for what, is_refused in refused.items():
        refuse(is_refused, what)


def why_chains(config: VllmConfig, kv_cache_config: Any) -> str | None:
    """Why vLLM's own caches serve chains only, whose states and blocks it keeps itself; None where they serve trees.

    Raises `UnsupportedModeError`: recurrent layers whose states vLLM does not set back after rejected drafts.
    """
    groups, model = kv_cache_config.kv_cache_groups, config.model_config
    kinds = {kind.name for group in groups if (kind := getattr(group.kv_cache_spec, "mamba_type", None))}
    lost = ", ".join(sorted(kinds - {"GDN_ATTN", "MAMBA2", "SHORT_CONV"}))  # These get the number of accepted tokens.
    refuse(bool(lost), f"recurrent layers ({lost}) whose states vLLM does not set back after rejected drafts")
    if model.is_hybrid or model.use_mla:
        return "recurrent layers and latent attention (MLA) know no segments"
    if len(groups) > 1:
        return f"there are {len(groups)} groups of KV caches (--disable-hybrid-kv-cache-manager makes one, for trees)"
    return None


def check_cache(kv_cache_config: Any, kernel_block_sizes: list[int]) -> None:
    """Raises `UnsupportedModeError`: split blocks."""
    size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    refuse(kernel_block_sizes != [size], f"blocks of {size} that the attention kernel splits into {kernel_block_sizes}")


def check_backends(backends: Iterable[Any]) -> None:
    """Raises `UnsupportedModeError`: an attention backend that knows no segments, which would read trees as chains."""
    for backend in backends:  # Those that vLLM derives from ours (chunks, sinks) rearrange requests before segments do.
        name = f"{backend.get_name()} ({backend.__name__})"
        refuse("has_segments" not in vars(backend), f"attention {name}: set it to FLASH_ATTN or TRITON_ATTN on CUDA")


def unserved(params: Any) -> str:
    """The sampling parameters of a request that are not served, by name; empty: all are."""
    names = "thinking_token_budget", "logprob_token_ids"
    return ", ".join(name for name in names if getattr(params, name, None) not in (None, []))


def refuse(is_refused: bool, what: str) -> None:
    """Raises `UnsupportedModeError`: `is_refused` is True."""
    if is_refused:
        raise UnsupportedModeError(f"treespec's trees do not serve {what}, or leave speculative_config out")
