"""Trees of fixed shapes, examples/vllm_fixed_shapes.py: one captured pass over buffers serves every batch.

What it computes is compared in an engine, in test_next_runner.py. Here writes to a paged cache stand in for a model.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.accelerator.device import DEVICE, PretendAccelerator
from helpers.engines.flat_trees import path_to, step_trees
from torch import Tensor

from treespec.errors import UnsupportedModeError
from treespec.vllm.segments import StepTrees, plan_segments

backend: Any = pytest.importorskip("vllm.v1.attention.backend")
SIZE, COLUMNS, NODES, SEGMENTS, MOST = 4, 6, 6, 5, 4
SPARE, SCRATCH = MOST * COLUMNS, 60
NUM_BLOCKS = SPARE + SCRATCH


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    return importlib.import_module("vllm_fixed_shapes")


class Builder:
    """Metadata that a kernel reads."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        names = "query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"
        found = {name: getattr(common_attn_metadata, name) for name in names}
        return SimpleNamespace(**found, scheduler_metadata=None)

    def build_for_cudagraph_capture(self, common: Any) -> Any:
        return self.build(0, common)


class Impl:
    """Writes keys of one number; those of tokens without a slot into the first one."""

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        kv_cache.view(-1).index_copy_(0, slot_mapping.clamp(min=0), key)


class Backend:
    get_builder_cls = staticmethod(lambda: Builder)
    get_impl_cls = staticmethod(lambda: Impl)


def layout(metadata: Any) -> dict[str, tuple[Any, ...]]:
    """Address, shape, strides and type of all tensors that a pass reads of its metadata."""
    parts = vars(metadata) | metadata.segments._asdict()
    tensors = {name: one for name, one in parts.items() if isinstance(one, Tensor)}
    return {name: (one.data_ptr(), one.shape, one.stride(), one.dtype) for name, one in tensors.items()}


class Pass:
    """A layer, its cache, and the buffers of vLLM that it reads, on `device`."""

    def __init__(self, shapes: Any, monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
        from treespec.vllm import attention

        kind = shapes.with_fixed_shapes(attention.with_segments(Backend, "a.module.Segments"), "a.module.Fixed")
        self.builder, self.layer = kind.get_builder_cls()(), kind.get_impl_cls()()
        self.builder.shapes = shapes.FixedShapes(MOST, NODES, SEGMENTS, COLUMNS, SPARE, device)
        self.cache, self.keys = torch.zeros(NUM_BLOCKS, SIZE).to(device), torch.zeros(MOST * NODES).to(device)
        self.slots = torch.full((MOST * NODES,), -1).to(device)
        self._context = SimpleNamespace(attn_metadata=None)
        monkeypatch.setattr(attention, "get_forward_context", lambda: self._context)

    def common(self, num_reqs: int) -> Any:
        """vLLM's metadata by request, which only say how many there are."""
        rows = torch.zeros(num_reqs, dtype=torch.int32)
        return backend.CommonAttentionMetadata(
            query_start_loc=rows, query_start_loc_cpu=rows, seq_lens=rows, num_reqs=num_reqs, max_seq_len=0,
            num_actual_tokens=num_reqs * NODES, max_query_len=NODES, block_table_tensor=rows,
            slot_mapping=self.slots[: num_reqs * NODES],
        )  # fmt: skip

    def capture(self) -> Callable[[], None]:
        """The pass of the most requests as a call without arguments."""
        metadata = self.builder.build_for_cudagraph_capture(self.common(MOST))

        def forward() -> None:
            self._context.attn_metadata = {"layer": metadata}
            layer = SimpleNamespace(layer_name="layer")
            self.layer.do_kv_cache_update(layer, self.keys, self.keys, self.cache, metadata.slot_mapping)

        forward()
        return forward


@dataclass
class Step:
    """The part of a step that `spread` reads."""

    plan: Any
    flat: StepTrees


def all_trees(size: int) -> list[list[int]]:
    """All trees of `size` nodes in depth-first order: a node's parent is the node before it, or one above that."""
    trees = [[-1]]
    for node in range(1, size):
        trees = [[*tree, parent] for tree in trees for parent in path_to(tree, node - 1)]
    return trees


def fill(one: Pass, shapes: Any, num_reqs: int) -> None:
    """The buffers of the next pass: requests with a random tree each, whose N tokens end with padding."""
    rng = np.random.default_rng(num_reqs)
    known = [all_trees(int(rng.integers(1, NODES + 1))) for _ in range(num_reqs)]
    trees = [some[rng.integers(len(some))] for some in known]
    table = rng.permutation(MOST * COLUMNS)[: num_reqs * COLUMNS].reshape(num_reqs, COLUMNS)
    flat, sizes = step_trees(trees, rng.integers(0, SIZE * COLUMNS - NODES, num_reqs)), np.array(list(map(len, trees)))
    plan = plan_segments(flat, table, SIZE, SPARE + 1 + np.arange(SCRATCH - 2))
    plan = shapes.spread(Step(plan, flat), sizes, NODES - sizes).plan
    ends = NODES * np.arange(1, MOST + 1)
    one.builder.shapes.fill(plan, ends - NODES + np.append(sizes, [0] * (MOST - num_reqs)), ends, table)


def test_every_pass_reads_the_same_buffers_and_does_not_wait_for_the_host(
    shapes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PretendAccelerator("treespec") as device:
        one = Pass(shapes, monkeypatch, DEVICE)
        replay, addresses = one.capture(), layout(one.builder.captured[MOST])
        for number in range(1, MOST + 1):
            fill(one, shapes, number)
            assert device.uploads
            assert layout(one.builder.build(0, one.common(MOST))) == addresses
            device.clear()
            replay()
            assert device.launches
            assert not device.reads + device.uploads + device.pinned


def test_copies_of_ancestors_have_room(shapes: Any) -> None:
    """In all trees of up to eight nodes, and no less room would do."""
    for size in range(1, 9):
        steps = [step_trees([tree], [0]) for tree in all_trees(size)]
        plans = [plan_segments(step, np.zeros((1, 4), int), 4, np.arange(100)) for step in steps]
        buffers = shapes.FixedShapes(1, size, max(size - 1, 1), 1, 0, "cpu")
        assert buffers.num_rewrites == max(len(plan.rewrites.T) for plan in plans)


def test_numbers_by_request_without_a_buffer_are_refused(shapes: Any) -> None:
    common = Pass.common(SimpleNamespace(slots=torch.zeros(NODES)), 1)
    buffers = shapes.FixedShapes(1, NODES, SEGMENTS, COLUMNS, SPARE, "cpu")
    buffers.fill_with_padding(1)
    assert buffers.expand(common).num_reqs == SEGMENTS + 1
    with pytest.raises(UnsupportedModeError, match="mm_req_doc_ranges"):
        buffers.expand(replace(common, mm_req_doc_ranges={0: [(1, 2)]}))
