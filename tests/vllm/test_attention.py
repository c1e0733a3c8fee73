"""vLLM's attention metadata with a row per segment."""

# pyright: reportMissingImports=false
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.engines.flat_trees import step_trees

pytest.importorskip("vllm.config")

from vllm.v1.attention.backend import CommonAttentionMetadata

from treespec.errors import UnsupportedModeError
from treespec.vllm import attention
from treespec.vllm.segments import plan_segments

SIZE = 4


def metadata(**fields: Any) -> Any:
    """Two requests: a tree of four nodes whose root is at position 5, and a root alone at position 2."""
    given = {
        "query_start_loc": torch.tensor([0, 4, 5], dtype=torch.int32),
        "query_start_loc_cpu": torch.tensor([0, 4, 5], dtype=torch.int32),
        "seq_lens": torch.tensor([9, 3], dtype=torch.int32),
        "num_reqs": 2,
        "num_actual_tokens": 5,
        "max_query_len": 4,
        "max_seq_len": 9,
        "block_table_tensor": torch.tensor([[1, 2, 3], [4, 0, 0]], dtype=torch.int32),
        "slot_mapping": torch.arange(5),
    }
    return CommonAttentionMetadata(**{**given, **fields})


@pytest.fixture
def plan() -> Any:
    step = step_trees([[-1, 0, 0, 2], [-1]], [5, 2])
    return plan_segments(step, np.array([[1, 2, 3], [4, 0, 0]]), SIZE, np.array([8, 9]))


def test_segments_are_rows(plan: Any) -> None:
    found = attention.expand(metadata(), plan, 5)
    assert found.query_start_loc.tolist() == [0, 2, 4, 5]
    assert found.seq_lens.tolist() == [7, 8, 3]
    assert found.block_table_tensor.tolist() == [[1, 2, 3], [1, 8, 3], [4, 0, 0]]
    assert (found.num_reqs, found.max_query_len, found.mm_req_doc_ranges) == (3, 2, None)
    found = attention.expand(metadata(mm_req_doc_ranges={0: [(1, 3)]}), plan, 5)
    assert found.mm_req_doc_ranges == {0: [(1, 3)], 1: [(1, 3)]}  # Ranges of images follow their requests.


@pytest.mark.parametrize(
    "name", ["rswa_prefix_lens", "encoder_seq_lens", "dcp_local_seq_lens", "replayssm_decode_base_cpu", "causal"]
)
def test_other_numbers_by_request_are_refused(plan: Any, name: str) -> None:
    with pytest.raises(UnsupportedModeError, match="causal flag" if name == "causal" else name):
        attention.expand(metadata(**{name: torch.tensor([True, False])}), plan, 5)


class PretendedBuilder:
    """A builder of metadata in an attention backend of vLLM."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return SimpleNamespace(seq_lens=common_attn_metadata.seq_lens.tolist())


class PretendedImpl:
    """An attention implementation that writes the cache, [blocks, SIZE]: a token's key."""

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any) -> None:
        kv_cache.view(-1)[slot_mapping] = key


class PretendedBackend:
    get_builder_cls = staticmethod(lambda: PretendedBuilder)
    get_impl_cls = staticmethod(lambda: PretendedImpl)


def test_attention_that_writes_its_cache_in_another_way_is_refused() -> None:
    class WritesInForward(PretendedBackend):
        get_impl_cls = staticmethod(lambda: object)

    class WritesMore(PretendedBackend):
        get_impl_cls = staticmethod(lambda: SimpleNamespace(do_kv_cache_update=lambda layer, key, value, cache: None))

    for backend in (WritesInForward, WritesMore):
        with pytest.raises(UnsupportedModeError, match="Other, which does not write its cache by do_kv_cache_update"):
            attention.with_segments(backend, "a.module.Other")


def test_a_pass_has_the_segments_of_its_own_metadata(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = attention.with_segments(PretendedBackend, "a.module.Pretended")
    with_trees, plain = known.get_builder_cls()(), known.get_builder_cls()()
    with_trees.segments = attention.PassSegments(plan, 5, *map(torch.from_numpy, (plan.block_copies, plan.rewrites)))
    built = {"trees": with_trees.build(0, metadata()), "plain": plain.build(0, metadata())}
    assert built["trees"].seq_lens == [7, 8, 3]
    assert built["plain"].seq_lens == [9, 3]
    keys, slots, caches = torch.arange(100, 105), torch.tensor([9, 10, 34, 35, 18]), {}
    for name, given in (("trees", built), ("plain", built), ("profiling", None)):
        monkeypatch.setattr(attention, "get_forward_context", lambda given=given: SimpleNamespace(attn_metadata=given))
        caches[name] = torch.arange(40).view(10, SIZE)
        layer = SimpleNamespace(layer_name=name)
        known.get_impl_cls()().do_kv_cache_update(layer, keys, keys, caches[name], slots)
    expected = torch.arange(40)
    expected[slots] = keys
    assert torch.equal(caches["plain"].view(-1), expected)
    assert torch.equal(caches["profiling"], caches["plain"])
    # The root's block, the root once more, then the segment's own two nodes.
    assert caches["trees"][8].tolist() == [8, 100, 102, 103]
    assert torch.equal(caches["trees"][:8], caches["plain"][:8])
