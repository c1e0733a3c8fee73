"""Trees of fixed shapes, examples/vllm_fixed_shapes.py: one captured pass over buffers serves every batch.

A layer of attention over a paged cache stands in for a model.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.accelerator.device import DEVICE, PretendAccelerator
from torch import Tensor

from treespec.errors import UnsupportedModeError
from treespec.vllm.segments import StepTrees, plan_segments

backend: Any = pytest.importorskip("vllm.v1.attention.backend")
SIZE, COLUMNS, NODES, SEGMENTS, MOST, HIDDEN = 4, 6, 6, 5, 4, 3
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
    """Writes keys, and values, of HIDDEN numbers each; a token without a slot leaves the cache's last slot as it is."""

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        flat = kv_cache.view(-1, 2 * HIDDEN)
        target = torch.where(slot_mapping < 0, flat.shape[0] - 1, slot_mapping)
        written = torch.where((slot_mapping < 0)[:, None], flat[-1], torch.cat([key, value], 1))
        flat.index_copy_(0, target, written)


class Backend:
    get_builder_cls = staticmethod(lambda: Builder)
    get_impl_cls = staticmethod(lambda: Impl)


def attend(query: Tensor, cache: Tensor, metadata: Any) -> Tensor:
    """Attention [T, HIDDEN] of all tokens to the sequences that they end; shapes depend on no value."""
    starts, tokens = metadata.query_start_loc, torch.arange(len(query), device=query.device)
    sequence = torch.searchsorted(starts[1:], tokens, right=True, out_int32=True).long()
    last = metadata.seq_lens[sequence] - (starts[1:][sequence] - tokens)
    seen = cache[metadata.block_table_tensor[sequence].long()].flatten(1, 2)
    scores = torch.einsum("th,tsh->ts", query, seen[..., :HIDDEN])
    is_later = torch.arange(seen.shape[1], device=query.device) > last[:, None]
    return torch.einsum("ts,tsh->th", scores.masked_fill(is_later, -torch.inf).softmax(-1), seen[..., HIDDEN:])


class Pass:
    """A layer, its cache, and the buffers of vLLM that it reads, on `device`."""

    def __init__(self, shapes: Any, monkeypatch: pytest.MonkeyPatch, device: Any = "cpu") -> None:
        from treespec.vllm import attention

        kind = shapes.with_fixed_shapes(attention.with_segments(Backend, "a.module.Segments"), "a.module.Fixed")
        self.builder, self.layer = kind.get_builder_cls()(), kind.get_impl_cls()()
        self.builder.shapes = shapes.FixedShapes(MOST, NODES, SEGMENTS, COLUMNS, SPARE, device)
        self.cache = torch.randn(NUM_BLOCKS, SIZE, 2 * HIDDEN).to(device)
        self.hidden = torch.zeros(MOST * NODES, 3 * HIDDEN).to(device)
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

    def forward(self, metadata: Any, num_reqs: int) -> Callable[[], Tensor]:
        """The pass as a call without arguments."""
        query, key, value = self.hidden[: num_reqs * NODES].chunk(3, 1)

        def run() -> Tensor:
            self._context.attn_metadata = {"layer": metadata}
            layer = SimpleNamespace(layer_name="layer")
            self.layer.do_kv_cache_update(layer, key, value, self.cache, metadata.slot_mapping)
            return attend(query, self.cache, metadata)

        return run

    def capture(self, num_reqs: int) -> Callable[[], Tensor]:
        forward = self.forward(self.builder.build_for_cudagraph_capture(self.common(num_reqs)), num_reqs)
        forward()
        return forward

    def build(self, num_reqs: int) -> Any:
        return self.builder.build(0, self.common(num_reqs))


@dataclass
class Step:
    """The part of a step that `spread` reads."""

    plan: Any
    flat: StepTrees


def path_to(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def all_trees(size: int) -> list[list[int]]:
    """All trees of `size` nodes in depth-first order: a node's parent is the node before it, or one above that."""
    trees = [[-1]]
    for node in range(1, size):
        trees = [[*tree, parent] for tree in trees for parent in path_to(tree, node - 1)]
    return trees


def depths_of(parents: list[int]) -> list[int]:
    return [len(path_to(parents, node)) - 1 for node in range(len(parents))]


class Batch:
    """Requests with a text and a random tree each; of N tokens of each request those after its tree are padding."""

    def __init__(self, seed: int, num_reqs: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = [all_trees(int(rng.integers(1, NODES + 1))) for _ in range(num_reqs)]
        self.trees = [trees[rng.integers(len(trees))] for trees in shapes]
        self.lengths = rng.integers(0, SIZE * COLUMNS - NODES, num_reqs)
        self.table = rng.permutation(MOST * COLUMNS)[: num_reqs * COLUMNS].reshape(num_reqs, COLUMNS)
        self.sizes = np.array(list(map(len, self.trees)))
        width = self.sizes.max()
        parents = np.array([tree + [-2] * (width - len(tree)) for tree in self.trees])
        self.depths = np.array([depths_of(tree) + [0] * (width - len(tree)) for tree in self.trees])
        firsts = np.cumsum(self.sizes) - self.sizes
        self.flat = StepTrees(parents, self.depths, firsts, firsts, self.lengths, self.sizes - 1)

    def fill(self, one: Pass, shapes: Any, num_reqs: int) -> Any:
        """The buffers of the next pass; its plan."""
        free, padding = SPARE + 1 + np.arange(SCRATCH - 2), NODES - self.sizes
        plan = plan_segments(self.flat, self.table, SIZE, free)
        plan = shapes.spread(Step(plan, self.flat), self.sizes, padding).plan
        ends = NODES * np.arange(1, num_reqs + 1)
        one.builder.shapes.fill(plan, ends - np.append(padding, [NODES] * (num_reqs - len(padding))), ends, self.table)
        slots = np.full(num_reqs * NODES, -1)
        for row, (size, length) in enumerate(zip(self.sizes, self.lengths, strict=True)):
            for node in range(size):
                block, offset = divmod(length + self.depths[row, node], SIZE)
                slots[row * NODES + node] = self.table[row, block] * SIZE + offset
        slots[plan.moves[0]] = plan.moves[2]
        one.slots[: len(slots)] = torch.from_numpy(slots)
        return plan

    def expected(self, hidden: Tensor, before: Tensor) -> Iterator[tuple[int, Tensor]]:
        """By token its attention to the request's text and its own path."""
        query, own = hidden[:, :HIDDEN], hidden[:, HIDDEN:]
        for row, (tree, length) in enumerate(zip(self.trees, self.lengths, strict=True)):
            text = before[torch.from_numpy(self.table[row])].flatten(0, 1)[:length]
            for node in range(len(tree)):
                seen = torch.cat([text, own[row * NODES + torch.tensor(path_to(tree, node))]])
                token = row * NODES + node
                yield token, (seen[:, :HIDDEN] @ query[token]).softmax(0) @ seen[:, HIDDEN:]


@pytest.mark.parametrize("seed", range(12))
def test_one_captured_pass_serves_every_batch(shapes: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    from helpers.engines.fixed_shapes import layout

    one = Pass(shapes, monkeypatch)
    replay, captured = one.capture(MOST), one.builder.captured[MOST]
    addresses = layout(metadata=captured)
    for number in range(1, MOST + 1):
        batch = Batch(100 * seed + number, number)
        one.hidden.normal_()
        before = one.cache.clone()
        plan = batch.fill(one, shapes, MOST)
        found = replay().clone()
        for token, expected in batch.expected(one.hidden, before):
            torch.testing.assert_close(found[token], expected)
        metadata = one.build(MOST)
        assert layout(metadata=metadata) == addresses
        assert torch.equal(one.forward(metadata, MOST)(), found)
        written = {int(slot) // SIZE for slot in one.slots if slot >= 0} | set(plan.table[2].tolist())
        untouched = sorted(set(range(NUM_BLOCKS)) - written)
        assert torch.equal(one.cache[untouched], before[untouched])


def test_a_captured_pass_does_not_wait_for_the_host(shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(5, MOST - 1)
    hidden, cache = torch.randn(MOST * NODES, 3 * HIDDEN), torch.randn(NUM_BLOCKS, SIZE, 2 * HIDDEN)
    with PretendAccelerator("treespec") as device:
        one = Pass(shapes, monkeypatch, DEVICE)
        replay = one.capture(MOST)
        one.hidden.copy_(hidden)
        one.cache.copy_(cache)
        batch.fill(one, shapes, MOST)
        assert device.uploads
        device.clear()
        found = replay()
        assert device.launches
        assert not device.reads + device.uploads + device.pinned
        found = found.cpu()
    for token, expected in batch.expected(hidden, cache):
        torch.testing.assert_close(found[token], expected)


def test_another_buffer_is_seen(shapes: Any) -> None:
    from helpers.engines.fixed_shapes import layout

    buffers = shapes.FixedShapes(2, NODES, SEGMENTS, COLUMNS, SPARE, "cpu")
    before = layout(metadata=buffers.copies(2))
    buffers.fill_with_padding(2)
    assert layout(metadata=buffers.copies(2)) == before
    buffers.rewrites = buffers.rewrites.clone()
    assert layout(metadata=buffers.copies(2)) != before


def test_copies_of_ancestors_have_room(shapes: Any) -> None:
    """In all trees of up to eight nodes, and no less room would do."""
    for size in range(1, 9):
        numbers = [len(plan_of(parents).rewrites.T) for parents in all_trees(size)]
        assert max(numbers) == shapes.FixedShapes(1, size, max(size - 1, 1), 1, 0, "cpu").num_rewrites


def plan_of(parents: list[int]) -> Any:
    nothing = np.zeros(1, dtype=int)
    step = StepTrees(np.array([parents]), np.array([depths_of(parents)]), nothing, nothing, nothing, nothing)
    return plan_segments(step, np.zeros((1, 4), dtype=int), 4, np.arange(100))


def test_numbers_by_request_without_a_buffer_are_refused(shapes: Any) -> None:
    common = Pass.common(SimpleNamespace(slots=torch.zeros(NODES)), 1)
    buffers = shapes.FixedShapes(1, NODES, SEGMENTS, COLUMNS, SPARE, "cpu")
    buffers.fill_with_padding(1)
    assert buffers.expand(common).num_reqs == SEGMENTS + 1
    with pytest.raises(UnsupportedModeError, match="mm_req_doc_ranges"):
        buffers.expand(replace(common, mm_req_doc_ranges={0: [(1, 2)]}))
