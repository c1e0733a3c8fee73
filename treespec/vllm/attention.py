"""Attention backends of vLLM that know segments: the only part that runs inside a pass."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from vllm.forward_context import get_forward_context
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from treespec.vllm.segments import SegmentPlan
from treespec.vllm.supported import refuse
from treespec.vllm.touched import has

WRITES = "do_kv_cache_update(self,layer,key,value,kv_cache,slot_mapping)"
"""The method by which a pass writes its keys and values, as the table of names would have it."""


class PassSegments(NamedTuple):
    """The segments of one pass, whose flat batch has `num_tokens`; the plan's copies are on the device of the cache."""

    plan: SegmentPlan
    num_tokens: int
    block_copies: Int[Tensor, "2 M"]
    rewrites: Int[Tensor, "2 M"]


@functools.cache
def __getattr__(name: str) -> Any:
    """vLLM's backend of this name, such as `CPU_ATTN` or `FLASH_ATTN`, with segments: vLLM imports it from here."""
    if name not in AttentionBackendEnum.__members__:
        raise AttributeError(f"vLLM has no attention backend {name}")
    return with_segments(resolve_obj_by_qualname(AttentionBackendEnum[name].value), f"{__name__}.{name}")


def with_segments(backend: Any, path: str) -> Any:
    """The backend with segments: decoder attention whose cache is indexed by blocks first, and written by `WRITES`.

    Args:
        path: module and name under which vLLM finds the result: on CUDA it imports what the class says of itself.

    Raises `UnsupportedModeError`: another attention.
    """
    builder_base, impl_base = backend.get_builder_cls(), backend.get_impl_cls()
    refuse(not has(impl_base, WRITES), f"attention {path}, which does not write its cache by {WRITES}")

    class SegmentBuilder(builder_base):
        """Builds metadata with a row per segment, which take the segments along to the layers."""

        segments: PassSegments | None = None  # The model runner sets the next pass's.

        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            if self.segments is not None:
                common_attn_metadata = expand(common_attn_metadata, self.segments.plan, self.segments.num_tokens)
            metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
            metadata.segments = self.segments
            return metadata

    class SegmentImpl(impl_base):
        """Copies the root's block and writes ancestors once more, before it writes the pass's own keys and values."""

        def do_kv_cache_update(self, layer: Any, key: Tensor, value: Tensor, kv_cache: Any, slot_mapping: Any) -> None:
            metadata = (get_forward_context().attn_metadata or {}).get(layer.layer_name)  # None in dummy runs.
            if (segments := getattr(metadata, "segments", None)) is not None:
                source, target = segments.block_copies
                kv_cache.index_copy_(0, target, kv_cache.index_select(0, source))  # Before tokens are written there.
                tokens, again = segments.rewrites
                super().do_kv_cache_update(layer, key[tokens], value[tokens], kv_cache, again)
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

    class SegmentBackend(backend):
        """The same backend, built of these."""

        has_segments = True

        @staticmethod
        def get_builder_cls() -> Any:
            return SegmentBuilder

        @staticmethod
        def get_impl_cls() -> Any:
            return SegmentImpl

    SegmentBackend.__module__, _, SegmentBackend.__qualname__ = path.rpartition(".")
    return SegmentBackend


BY_REQUEST = ("encoder_seq_lens", "dcp_local_seq_lens", "rswa_prefix_lens", "replayssm_decode_base_cpu")
"""Numbers by request in vLLM's metadata that segments have no answer for; None where they are not used."""


def expand(metadata: Any, plan: SegmentPlan, num_tokens: int) -> Any:
    """vLLM's `CommonAttentionMetadata` with one row per segment in place of one per request.

    Raises `UnsupportedModeError`: a field by request that segments have no answer for.
    """
    given = [name for name in BY_REQUEST if getattr(metadata, name) is not None]
    refuse(bool(given) or isinstance(metadata.causal, Tensor), f"attention with {given or 'a causal flag'} by request")
    ranges = metadata.mm_req_doc_ranges
    if ranges is not None:
        ranges = {segment: ranges[row] for segment, row in enumerate(plan.requests.tolist()) if row in ranges}
    starts = torch.from_numpy(plan.first_tokens).to(torch.int32)
    starts = torch.cat([starts, torch.tensor([num_tokens], dtype=torch.int32, device="cpu")])
    lengths = torch.from_numpy(plan.lengths).to(torch.int32)
    table = metadata.block_table_tensor
    requests = torch.from_numpy(plan.requests).to(table.device)
    table = table[requests]
    segments, columns, blocks = torch.from_numpy(plan.table).to(table.device)
    table[segments, columns] = blocks.to(table.dtype)
    return metadata.replace(
        query_start_loc=starts.to(metadata.query_start_loc.device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(metadata.seq_lens.device),
        seq_lens_cpu_upper_bound=lengths,
        block_table_tensor=table,
        num_reqs=len(plan.requests),
        max_query_len=int(starts.diff().max()),
        is_prefilling=None if metadata.is_prefilling is None else metadata.is_prefilling[plan.requests],
        req_idx=None if metadata.req_idx is None else metadata.req_idx[plan.requests],
        mm_req_doc_ranges=ranges,
        _num_computed_tokens_cache=None,  # vLLM keeps these two by request.
        _token_to_req_indices_cache=None,
    )
