"""Configurations and requests that are refused, by name."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import inspect
import pkgutil
from dataclasses import asdict
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.vllm_sources import WHAT_TO_DO, differing, known_hashes, minor_of, source_hash

from treespec.errors import ConfigError, UnsupportedModeError

pytest.importorskip("vllm.config")

from vllm.config import CUDAGraphMode
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as Kind
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.version import __version__ as VERSION

from treespec.vllm import supported
from treespec.vllm.attention import CPU_ATTN, with_segments
from treespec.vllm.options import Options
from treespec.vllm.plugin import PROPOSER
from treespec.vllm.runner import TreeRunner
from treespec.vllm.scheduler import TreeScheduler, num_scratch_blocks
from treespec.vllm.supported import KV_UPDATE, check_backends, check_config, unserved, why_chains
from treespec.vllm.touched import TOUCHED, check_version
from treespec.vllm.worker import WithTrees, check_classes


def config(**values: Any) -> SimpleNamespace:
    """A vLLM configuration that is served; names with a dot are of its parts."""
    parts = {
        "parallel_config": {
            "pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "prefill_context_parallel_size": 1,
            "use_ubatching": False, "data_parallel_size": 1,
        },
        "model_config": {
            "uses_mrope": False, "is_encoder_decoder": False, "use_mla": False, "logprobs_mode": "raw_logprobs",
            "attention_chunk_size": None, "rswa_window": None, "is_hybrid": False, "is_attention_free": False,
            "runner_type": "generate",
        },
        "compilation_config": {
            "cudagraph_mode": CUDAGraphMode.PIECEWISE, "splitting_ops": [KV_UPDATE],
            "use_inductor_graph_partition": False,
        },
        "cache_config": {"kv_sharing_fast_prefill": False},
        "scheduler_config": {"async_scheduling": False},
    }  # fmt: skip
    plain = {"use_v2_model_runner": False, "kv_transfer_config": None, "additional_config": {}}
    for name, value in values.items():
        part, _, key = name.partition("__")
        if key:
            parts[part][key] = value
        else:
            plain[name] = value
    return SimpleNamespace(**plain, **{name: SimpleNamespace(**part) for name, part in parts.items()})


def test_this_vllm_and_a_plain_configuration_are_served() -> None:
    check_version(VERSION)
    check_config(config())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline parallelism: .* tensor_parallel_size"),
        ({"parallel_config__data_parallel_size": 2}, "data parallelism: start a server for each replica"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__use_ubatching": True}, "dual batch overlap"),
        ({"kv_transfer_config": object()}, "KV connectors"),
        ({"model_config__uses_mrope": True}, "M-RoPE"),
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_config__runner_type": "pooling"}, "pooling: leave runner out"),
        ({"model_config__use_mla": True}, "MLA on CPUs, where who shares a batch changes"),
        ({"model_config__is_hybrid": True}, "recurrent layers on CPUs, where vLLM's own drafts fail"),
        ({"model_config__is_attention_free": True}, "models without attention"),
        ({"model_config__logprobs_mode": "processed_logprobs"}, "raw_logprobs"),
        *(
            ({"compilation_config__cudagraph_mode": mode}, rf"\({mode.name}\).* write --compilation-config '{{\"cudag")
            for mode in (CUDAGraphMode.FULL, CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_AND_PIECEWISE)
        ),
        ({"compilation_config__use_inductor_graph_partition": True}, "leave out splitting_ops"),
        ({"compilation_config__splitting_ops": ["vllm::unified_attention_with_output"]}, f"name {KV_UPDATE}"),
        ({"model_config__attention_chunk_size": 8192}, "Llama 4"),
        ({"model_config__rswa_window": 128}, "reference sliding window"),
        ({"cache_config__kv_sharing_fast_prefill": True}, "kv_sharing_fast_prefill"),
        ({"scheduler_config__async_scheduling": True}, "asynchronous scheduling: .* --no-async-scheduling"),
    ],
)
def test_configurations_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModeError, match=message):
        check_config(config(**change))  # pyright: ignore[reportArgumentType]


def test_installed_logits_processors_are_refused_as_vllm_leaves_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.EntryPoint("mine", "my_package:Processor", "vllm.logits_processors")
    monkeypatch.setattr(supported, "entry_points", lambda group: [installed] if group == installed.group else [])
    with pytest.raises(UnsupportedModeError, match=r"entry points vllm\.logits_processors, which vLLM leaves out"):
        check_config(config())  # pyright: ignore[reportArgumentType]


def test_without_graphs_any_way_of_compiling_is_served() -> None:
    change = {"cudagraph_mode": CUDAGraphMode.NONE, "use_inductor_graph_partition": True, "splitting_ops": []}
    check_config(config(**{f"compilation_config__{name}": value for name, value in change.items()}))  # pyright: ignore[reportArgumentType]


def test_our_worker_alone_is_refused() -> None:
    trees = SimpleNamespace(model=PROPOSER, method="custom_class")
    for speculation, scheduler, message in (
        (None, TreeScheduler, "got None and TreeScheduler"),
        (SimpleNamespace(model="ngram", method="ngram"), TreeScheduler, "got ngram and TreeScheduler"),
        (trees, Scheduler, "TreeScheduler', got treespec.vllm.Proposer and Scheduler"),
    ):
        found = SimpleNamespace(get_scheduler_cls=lambda scheduler=scheduler: scheduler)
        with pytest.raises(ConfigError, match=message):
            check_classes(SimpleNamespace(speculative_config=speculation, scheduler_config=found))  # pyright: ignore[reportArgumentType]
    found = SimpleNamespace(get_scheduler_cls=lambda: TreeScheduler)
    check_classes(SimpleNamespace(speculative_config=trees, scheduler_config=found))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("num_blocks", "num_groups", "num_scratch"),
    [(1000, 1, 120), (400, 1, 100), (40, 1, 7), (33, 1, 0), (3, 1, 0), (1000, 2, 0)],  # The longest takes 32 blocks.
)
def test_scratch_blocks_leave_room_for_the_longest_request(num_blocks: int, num_groups: int, num_scratch: int) -> None:
    parts = {
        "speculative_config": SimpleNamespace(num_speculative_tokens=15),
        "scheduler_config": SimpleNamespace(max_num_seqs=4),
        "model_config": SimpleNamespace(max_model_len=1000, is_hybrid=False, use_mla=False),
        "cache_config": SimpleNamespace(block_size=32),
    }
    cache = SimpleNamespace(num_blocks=num_blocks, **vars(groups(*[None] * num_groups)))
    assert num_scratch_blocks(SimpleNamespace(**parts), cache) == num_scratch  # pyright: ignore[reportArgumentType]


OVERRIDDEN = {
    TreeRunner: "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
    TreeScheduler: "vllm.v1.core.sched.scheduler:Scheduler",
    WithTrees: "vllm.v1.worker.gpu_worker:Worker",
    CPU_ATTN: "vllm.v1.attention.backend:AttentionBackend",
    CPU_ATTN.get_builder_cls(): "vllm.v1.attention.backend:AttentionMetadataBuilder",
}


@pytest.mark.parametrize("ours", OVERRIDDEN)
def test_the_table_has_every_method_that_is_overridden(ours: type) -> None:
    path = OVERRIDDEN[ours]
    base, entries = pkgutil.resolve_name(path), {entry.split("(")[0] for entry in TOUCHED[path]}
    overridden = {name for name in vars(ours) if hasattr(base, name) and not name.startswith(("__", "_abc_"))}
    assert overridden
    assert overridden <= entries


def test_sources_that_are_relied_on_have_not_changed() -> None:
    """Under a version without hashes what it has changed since the newest one with hashes is named."""
    newest, known = known_hashes(minor_of(VERSION))
    changed = differing(known)
    assert changed == [], f"vLLM {VERSION} differs from {newest} in {', '.join(changed)}: {WHAT_TO_DO}"
    assert newest == minor_of(VERSION), f"vLLM {VERSION} has all sources of {newest}: {WHAT_TO_DO}"


def test_hashes_are_of_what_python_finds() -> None:
    """The sources are read without importing them."""
    for part in ("vllm.v1.sample.sampler:Sampler.forward", "vllm.v1.attention.backend:CommonAttentionMetadata"):
        source = inspect.getsource(pkgutil.resolve_name(part))
        assert source_hash(part) == hashlib.sha256(source.encode()).hexdigest()[:12]


def groups(*kinds: Kind | None) -> SimpleNamespace:
    """Caches of layers with states of these kinds, and of attention where there is None."""
    states = {"shapes": ((1,),), "dtypes": (torch.float32,), "block_size": 32}
    specs = [kind and MambaSpec(mamba_type=kind, **states) for kind in kinds]
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supported, "current_platform", SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: True))


def test_other_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm's kernels may write caches by another method than the one that segments replace."""
    other = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: False)
    monkeypatch.setattr(supported, "current_platform", other)
    with pytest.raises(UnsupportedModeError, match="devices but CPUs and CUDA"):
        check_config(config())


HYBRID = {"model_config__is_hybrid": True}


@pytest.mark.parametrize(
    ("change", "kinds", "message"),
    [
        ({}, [None], None),
        ({}, [None, None], "2 groups"),
        *((HYBRID, [None, kind], "recurrent layers") for kind in (Kind.GDN_ATTN, Kind.MAMBA2, Kind.SHORT_CONV)),
        ({"model_config__use_mla": True}, [None], "latent attention"),
    ],
)
def test_caches_that_serve_chains_only(change: dict[str, Any], kinds: list[Any], message: str | None) -> None:
    why = why_chains(config(**change), groups(*kinds))  # pyright: ignore[reportArgumentType]
    assert why is None if message is None else message in str(why)


@pytest.mark.parametrize("kind", ["MAMBA1", "LINEAR"])
def test_states_that_are_not_set_back_are_refused_on_all_devices(kind: str) -> None:
    with pytest.raises(UnsupportedModeError, match=rf"recurrent layers \({kind}\) whose states"):
        why_chains(config(**HYBRID), groups(None, Kind[kind], Kind.GDN_ATTN))  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("name", ["is_hybrid", "use_mla"])
def test_models_that_were_never_compared_are_served_when_asked_for(name: str) -> None:
    change = {f"model_config__{name}": True}
    for asked in ({}, {"allow_untested": "false"}):
        with pytest.raises(UnsupportedModeError, match='untested on this device: write "allow_untested": true'):
            check_config(config(**change, additional_config={"treespec": asked}))  # pyright: ignore[reportArgumentType]
    asked = asdict(Options.from_config({"allow_untested": True}))
    check_config(config(**change, additional_config={"treespec": asked}))  # pyright: ignore[reportArgumentType]


def test_backends_are_importable_by_what_they_say_of_themselves() -> None:
    with pytest.raises(ImportError, match="NO_SUCH"):
        from treespec.vllm.attention import NO_SUCH  # pyright: ignore[reportAttributeAccessIssue]  # noqa: F401
    # As vLLM does on CUDA; it also groups layers by these names.
    assert CPU_ATTN.full_cls_name() == ("treespec.vllm.attention", "CPU_ATTN")
    assert with_segments(CPUAttentionBackend, "a.module.Other").full_cls_name() == ("a.module", "Other")


def test_what_vllm_derives_from_our_backends_is_refused() -> None:
    from vllm.model_executor.layers.attention.chunked_local_attention import create_chunked_local_attention_backend

    check_backends([CPU_ATTN])
    derived = create_chunked_local_attention_backend(CPU_ATTN, 64)
    with pytest.raises(UnsupportedModeError, match="ChunkedLocalAttention"):
        check_backends([derived])


@pytest.mark.parametrize("name", ["thinking_token_budget", "logprob_token_ids"])
def test_requests_are_refused_by_name(name: str) -> None:
    assert unserved(SimpleNamespace()) == ""
    assert unserved(SimpleNamespace(**{name: [3]})) == name


def test_servers_answer_refused_requests_as_the_clients_error() -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMClientError

    from treespec.vllm.plugin import PROPOSER, _with_served_params

    speculation = SimpleNamespace(model=PROPOSER)
    with pytest.raises(VLLMClientError, match="thinking_token_budget"):
        _with_served_params(None, SamplingParams(thinking_token_budget=3), speculation)
    assert _with_served_params(None, SamplingParams(min_p=0.1, logit_bias={1: 2.0}), speculation) is None
