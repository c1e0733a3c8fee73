"""How the trees that vLLM scheduled are laid out in the flat batch of a step."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treespec.drafters.base import single_nodes
from treespec.tree import ROOT_PARENT, TreeBatch, Verdict
from treespec.vllm.drafts import Draft, scheduled_trees
from treespec.vllm.segments import SegmentPlan, StepTrees, plan_segments


@dataclass
class Step:
    """One pass: its trees, their segments, and what came of them.

    `drafted` and `plan` are None where nothing was drafted; then vLLM's sampler may have left the verdicts empty.
    `num_prompt`: tokens of chunks of prompts. `logits` [M, V], of request i from row `starts[i]` on.
    """

    drafted: TreeBatch | None
    roots: Sequence[int]
    plan: SegmentPlan | None
    flat: StepTrees
    num_prompt: int
    verdicts: Sequence[Verdict] = ()
    logits: Tensor | None = None
    starts: Sequence[int] = ()

    @functools.cached_property
    def trees(self) -> TreeBatch:
        """The drafted trees, or the roots alone, which steps without drafts rarely need."""
        return self.drafted or single_nodes(torch.tensor(self.roots, device="cpu"))


def lay_out(
    batch: Any,
    scheduled_drafts: Mapping[str, Sequence[int]],
    counts: np.ndarray,
    drafts: Mapping[str, Draft],
    scratch: np.ndarray,
) -> Step:
    """The step of vLLM's input batch.

    Args:
        scheduled_drafts: by request the draft tokens that vLLM scheduled.
        counts: int64 [B], tokens of every request, prompt and drafts included.
        drafts: by request its last draft.
        scratch: see `plan_segments`.
    """
    table, requests = batch.block_table[0], batch.req_ids[: batch.num_reqs]
    scheduled = [scheduled_drafts.get(request, ()) for request in requests]
    num_drafts = np.array(list(map(len, scheduled)), dtype=np.int64)
    before = counts - 1 - num_drafts
    positions = batch.num_computed_tokens_cpu[: len(requests)].astype(np.int64) + before
    roots = batch.token_ids_cpu[np.arange(len(requests)), positions].tolist()
    trees = scheduled_trees(list(map(drafts.get, requests)), roots, scheduled) if num_drafts.any() else None
    zeros, firsts = np.zeros((len(roots), 1), dtype=np.int64), np.cumsum(counts) - counts
    shapes = (zeros + ROOT_PARENT, zeros) if trees is None else (trees.parents.numpy(), trees.depths.numpy())
    flat = StepTrees(*shapes, firsts, firsts + before, positions, num_drafts)
    plan = None if trees is None else plan_segments(flat, table.get_numpy_array(), table.block_size, scratch)
    return Step(trees, roots, plan, flat, int(before.sum()))
