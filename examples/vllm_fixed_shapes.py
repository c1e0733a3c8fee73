"""Trees of fixed shapes in vLLM's V2 runner, over `vllm_next_runner`: passes that a full CUDA graph can replay.

Every request that decodes has N = num_speculative_tokens + 1 nodes and S segments, so that a batch is uniform:

- after a tree's own nodes there is padding: token 0, no slot of the cache, never verified;
- segments that a tree lacks are sequences without a token; one more, of the padding, reads a scratch block of its own;
- block tables, lengths, starts, and the copies of ancestors lie in `FixedShapes`, buffers whose addresses and sizes
  depend on the padded number of requests only. They are filled before the pass; the pass waits for nothing.

vLLM then pads uniform batches to a captured size and replays that size's graph; on CUDA that takes a backend whose
`get_cudagraph_support` is ALWAYS, as segments differ in length. CPUs have no graphs: `ClosureGraphs` calls again what
was captured. As every step has the same number of drafts, vLLM's scheduler need not wait for the tokens:
`AsyncTreeScheduler`; the worker waits, to draft. vLLM plans ahead for few methods, "ngram_gpu" among them, and on CPUs
sets async_scheduling=False, which the tests set back.

    LLM(model, worker_cls="vllm_fixed_shapes.FixedWorker", scheduler_cls="vllm_fixed_shapes.AsyncTreeScheduler",
        speculative_config={"method": "ngram_gpu", "prompt_lookup_max": 1, "num_speculative_tokens": 7},
        additional_config={"treespec": {"tree": 8}, "segments": 7}, async_scheduling=True)

Axis letters: P requests after padding, J = S + 1 sequences of each, C columns of a block table.
"""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager, ModelCudaGraphManager
from vllm_next_runner import TreeModelRunner, TreeWorker

from treespec.checks import check_count
from treespec.tree import PADDING_PARENT, TreeBatch
from treespec.vllm import attention
from treespec.vllm.attention import BY_REQUEST, PassSegments
from treespec.vllm.drafting import ServedRow
from treespec.vllm.drafts import first_nodes
from treespec.vllm.layout import Step, lay_out
from treespec.vllm.scheduler import TreeScheduler
from treespec.vllm.segments import Ids, SegmentPlan, plan_segments, ranges
from treespec.vllm.supported import refuse

PADDING_TOKEN = 0


class AsyncTreeScheduler(TreeScheduler, AsyncScheduler):
    """vLLM's asynchronous scheduler without the scratch blocks. It plans with the number of drafts, N - 1 each time."""


class FixedShapes:
    """Buffers of a pass's segments, for up to `most` requests.

    `starts` int32 [P J + 1], `lengths` int32 [P J] and `table` int32 [P J, C] are those of vLLM, by sequence. Copies
    are those of `PassSegments`: what is left over copies block `spare` to itself, and token 0 to no slot.

    Args:
        spare: a scratch block that no tree takes; padding reads it.
    """

    def __init__(self, most: int, num_nodes: int, num_segments: int, num_columns: int, spare: int, device: Any) -> None:
        def buffer(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.num_nodes, self.num_segments, self.width, self.spare = num_nodes, num_segments, num_segments + 1, spare
        # Where scratch segments begin at most D deep, D + 1 nodes begin none: the root, and one of every depth, as
        # siblings share an eldest. The other N - 1 - D have at most D nodes above them, most when D is half of N - 1.
        self.num_rewrites = (num_nodes - 1) ** 2 // 4
        rows, self._host = most * self.width, (torch.zeros(0), torch.zeros(0))
        self.starts, self.lengths, self.table = buffer(rows + 1), buffer(rows), buffer(rows, num_columns)
        self.block_copies = buffer(2, most * (num_segments - 1), dtype=torch.int64)
        self.rewrites = buffer(2, most * self.num_rewrites, dtype=torch.int64)

    def fill(self, plan: SegmentPlan | None, paddings: Ids, ends: Ids, tables: Ids) -> None:
        """The next pass: `plan` of its requests, whose tokens from `paddings` to `ends` [P] are padding.

        `tables` [B, C] are the requests' own blocks; requests from B to P are padding alone. None: all of them are.
        """
        rows = len(ends) * self.width
        starts, lengths = np.repeat(paddings, self.width), np.zeros(rows, dtype=np.int64)
        lengths[self.num_segments :: self.width] = ends - paddings
        table = np.full((rows, self.table.shape[1]), self.spare)
        copies = self.copies(len(ends))
        blocks, rewrites = np.full(copies.block_copies.shape, self.spare), np.zeros(copies.rewrites.shape, np.int64)
        rewrites[1] = PAD_SLOT_ID
        if plan is not None:
            index = plan.requests * self.width + ranges(np.bincount(plan.requests))
            starts[index], lengths[index], table[index] = plan.first_tokens, plan.lengths, tables[plan.requests]
            table[index[plan.table[0]], plan.table[1]] = plan.table[2]
            blocks[:, : plan.block_copies.shape[1]] = plan.block_copies
            rewrites[:, : plan.rewrites.shape[1]] = plan.rewrites
        self._host = tuple(torch.from_numpy(x.astype(np.int32)) for x in (np.append(starts, ends[-1]), lengths))
        for target, values in zip((self.starts, self.lengths), self._host, strict=True):
            target[: len(values)] = values
        self.table[:rows] = torch.from_numpy(table)
        copies.block_copies[:] = torch.from_numpy(blocks)
        copies.rewrites[:] = torch.from_numpy(rewrites)

    def fill_with_padding(self, num_reqs: int) -> None:
        """A pass without a request, to be captured."""
        ends = self.num_nodes * np.arange(1, num_reqs + 1)
        self.fill(None, ends - self.num_nodes, ends, np.zeros((0, self.table.shape[1])))

    def copies(self, num_reqs: int) -> PassSegments:
        """Those of a pass with P = `num_reqs`."""
        blocks = self.block_copies[:, : num_reqs * (self.num_segments - 1)]
        plan: Any = None  # Its metadata are here.
        return PassSegments(plan, num_reqs * self.num_nodes, blocks, self.rewrites[:, : num_reqs * self.num_rewrites])

    def expand(self, metadata: Any) -> Any:
        """vLLM's `CommonAttentionMetadata` with J rows per request; see `attention.expand`.

        Raises `UnsupportedModeError`: a field by request that has no buffer here.
        """
        given = [name for name in (*BY_REQUEST, "mm_req_doc_ranges") if getattr(metadata, name, None) is not None]
        refuse(bool(given) or isinstance(metadata.causal, Tensor), f"fixed shapes with {given or 'a causal flag'}")
        rows, (starts, lengths) = metadata.num_reqs * self.width, self._host
        flags, numbers = metadata.is_prefilling, metadata.req_idx
        return metadata.replace(
            query_start_loc=self.starts[: rows + 1],
            query_start_loc_cpu=starts,
            seq_lens=self.lengths[:rows],
            seq_lens_cpu_upper_bound=lengths,
            block_table_tensor=self.table[:rows],
            num_reqs=rows,
            is_prefilling=None if flags is None else flags.repeat_interleave(self.width),
            req_idx=None if numbers is None else np.repeat(numbers, self.width),
            _num_computed_tokens_cache=None,
            _token_to_req_indices_cache=None,
        )


def with_fixed_shapes(backend: Any, path: str) -> Any:
    """A backend of `attention.with_segments` whose passes may have fixed shapes; `path` as there."""

    class FixedBuilder(backend.get_builder_cls()):
        """Builds metadata of views of the buffers."""

        shapes: Any = None
        """`FixedShapes` of the next pass; None where it has no drafts."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.captured: dict[int, Any] = {}

        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            if self.shapes is None:
                return super().build(common_prefix_len, common_attn_metadata, fast_build)
            num_reqs = common_attn_metadata.num_reqs
            metadata = super().build(common_prefix_len, self.shapes.expand(common_attn_metadata), fast_build)
            metadata.segments = self.shapes.copies(num_reqs)
            if num_reqs in self.captured:  # The kernel for CPUs has a list of work, planned for each pass.
                self.captured[num_reqs].scheduler_metadata = metadata.scheduler_metadata
            return metadata

        def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
            num_reqs = common_attn_metadata.num_reqs
            self.shapes.fill_with_padding(num_reqs)
            self.captured.pop(num_reqs, None)
            self.captured[num_reqs] = super().build_for_cudagraph_capture(common_attn_metadata)
            return self.captured[num_reqs]

    class FixedBackend(backend):
        """The same backend, built of these."""

        has_segments = True

        @staticmethod
        def get_builder_cls() -> Any:
            return FixedBuilder

    FixedBackend.__module__, _, FixedBackend.__qualname__ = path.rpartition(".")
    return FixedBackend


CPU_ATTN = with_fixed_shapes(resolve_obj_by_qualname(f"{attention.__name__}.CPU_ATTN"), f"{__name__}.CPU_ATTN")


class _Closures(CudaGraphManager):
    """Keeps the captured call itself in place of a graph of its kernels."""

    def capture(self, create_forward_fn: Any, progress_bar_desc: str = "") -> None:
        for desc in self._capture_descs[CUDAGraphMode.FULL]:
            forward = create_forward_fn(desc, warmup=False)
            forward(CUDAGraphMode.NONE)
            self.graphs[desc] = SimpleNamespace(replay=partial(forward, CUDAGraphMode.NONE))
        self._graphs_captured = True


class ClosureGraphs(ModelCudaGraphManager, _Closures):
    """vLLM's choice of a captured size, its padding and its outputs, on a device without graphs."""

    def __init__(self, config: Any, device: torch.device, num_nodes: int, sizes: list[int]) -> None:
        compilation = config.compilation_config
        compilation.cudagraph_capture_sizes = [num_nodes * size for size in sizes]
        compilation.max_cudagraph_capture_size = max(compilation.cudagraph_capture_sizes)
        super().__init__(config, device, CUDAGraphMode.NONE, decode_query_len=num_nodes)
        self.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
        self._init_candidates()


def spread(step: Step, counts: Ids, num_padding: Ids) -> Step:
    """The step with `num_padding` [B] more columns of the flat batch after each request's `counts`."""
    plan, flat = step.plan, step.flat
    assert plan is not None
    columns = np.arange(counts.sum()) + np.repeat(np.cumsum(num_padding) - num_padding, counts)
    flat = replace(flat, first_tokens=columns[flat.first_tokens], roots=columns[flat.roots])
    plan = replace(
        plan,
        first_tokens=columns[plan.first_tokens],
        rewrites=np.stack([columns[plan.rewrites[0]], plan.rewrites[1]]),
        moves=np.stack([columns[plan.moves[0]], *plan.moves[1:]]),
    )
    return replace(step, plan=plan, flat=flat)


class FixedRunner(TreeModelRunner):
    """V2's runner with trees of fixed shapes."""

    @torch.inference_mode()
    def initialize_kv_cache(self: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        """vLLM's; then the buffers and the captures.

        Raises `ConfigError`: `segments` is not a positive number; `UnsupportedModeError`: there is no scratch block, or
        no step has N tokens.
        """
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        refuse(len(self._scratch) == 0, "fixed shapes without a scratch block: give the cache more blocks")
        spare, self._scratch = int(self._scratch[0]), self._scratch[1:]
        num_nodes, columns = self.decode_query_len, self.block_tables.input_block_tables[0].shape[1]
        segments = check_count("segments", self.vllm_config.additional_config.get("segments", num_nodes - 1))
        self.shapes = FixedShapes(self.max_num_reqs, num_nodes, segments, columns, spare, self.device)
        self._capture(min(self.max_num_reqs, self.max_num_tokens // num_nodes))

    def _capture(self: Any, most: int) -> None:
        """Capture every power of two of requests, and `most`, the most of whom one step has all nodes."""
        num_nodes = self.shapes.num_nodes
        refuse(most == 0, f"fixed shapes of {num_nodes} nodes with a smaller max_num_batched_tokens")
        sizes = sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})
        self._set_shapes(self.shapes)
        graphs: Any = ClosureGraphs(self.vllm_config, self.device, num_nodes, sizes)
        graphs.capture(
            self.model, self.model_state, self.input_buffers, None, self.block_tables, self.attn_groups,
            self.kv_cache_config, use_aux_hidden_state_outputs=self.use_aux_hidden_state_outputs,
        )  # fmt: skip
        self.cudagraph_manager = graphs
        self._set_shapes(None)

    def _set_shapes(self: Any, shapes: FixedShapes | None) -> None:
        for group in (group for groups in self.attn_groups for group in groups):
            group.get_metadata_builder().shapes = shapes

    def prepare_attn(self: Any, input_batch: Any) -> Any:
        """As there, with what vLLM pads."""
        self._sizes = input_batch.num_reqs_after_padding, input_batch.num_tokens_after_padding
        return super().prepare_attn(input_batch)

    def _lay_out(self: Any, drafted: Any, counts: Ids) -> None:
        """Fill the buffers; what is scheduled beyond a tree's own nodes is padding."""
        self._set_shapes(None)
        if not any(drafted.values()):
            super()._lay_out(drafted, counts)
            return
        table, known = self.input_batch.block_table[0], self._drafts
        own = {name: known[name].tokens[1 : 1 + len(row)] if name in known else [] for name, row in drafted.items()}
        num_padding = np.array([len(row) - len(own[name]) for name, row in drafted.items()])
        step = lay_out(self.input_batch, own, counts - num_padding, known, self._scratch)
        blocks, ends = table.get_numpy_array(), np.cumsum(counts)
        plan = step.plan or plan_segments(step.flat, blocks, table.block_size, self._scratch)
        self._step = spread(replace(step, plan=plan), counts - num_padding, num_padding)
        self._write_slots(self._step.plan, ends - num_padding, num_padding)
        (num_reqs, num_tokens), size = self._sizes, self.decode_query_len
        missing = num_tokens - size * np.arange(num_reqs - len(ends))[::-1]
        paddings = np.append(ends - num_padding, missing - size)
        self.shapes.fill(self._step.plan, paddings, np.append(ends, missing), blocks)
        self._set_shapes(self.shapes)

    def _write_slots(self: Any, plan: SegmentPlan, paddings: Ids, num_padding: Ids) -> None:
        """Positions and slots of nodes in scratch segments; no slots for padding, from tokens `paddings` [B] on."""
        tokens, positions, slots = torch.from_numpy(plan.moves).to(self.device)
        padding = np.repeat(paddings, num_padding) + ranges(num_padding)
        slot_mapping = self.input_batch.block_table[0].slot_mapping.gpu
        self.positions[tokens], slot_mapping[tokens] = positions, slots
        slot_mapping[torch.from_numpy(padding).to(self.device)] = PAD_SLOT_ID

    def _trees_for(self: Any, rows: Sequence[ServedRow]) -> tuple[TreeBatch, list[int]]:
        """Trees of at most S segments."""
        trees, num_blocks = super()._trees_for(rows)
        num_segments, columns = self.shapes.num_segments, torch.arange(trees.max_nodes)
        is_short = num_segments < self.shapes.num_nodes - 1
        refuse(is_short and trees.draft_probs is not None, "sampled children with fewer segments than draft tokens")
        earlier = (trees.parents != columns - 1).cumsum(1)
        keep = (earlier < num_segments) & (trees.parents != PADDING_PARENT)
        return first_nodes(trees, keep.sum(1).tolist()), num_blocks

    def _served_rows(self: Any, step: Step, emitted: Sequence[Sequence[int]]) -> list[ServedRow]:
        """An asynchronous step may follow a request's last token."""
        return [replace(row, room=max(row.room, 1)) for row in super()._served_rows(step, emitted)]

    def draft(self: Any, batch: Any, hidden: Tensor, states: Any, num_sampled: list[int]) -> list[list[int]]:
        """Full rows where any request has a draft."""
        drafts, width = super().draft(batch, hidden, states, num_sampled), self.num_speculative_steps
        if any(drafts):
            rows = zip(drafts, num_sampled, strict=True)
            self._proposed = [[*row, *[PADDING_TOKEN] * (width - len(row))] if number else row for row, number in rows]
        return self._proposed


class FixedWorker(TreeWorker):
    """The example's worker with these."""

    backend, runner = f"{__name__}.CPU_ATTN", FixedRunner
