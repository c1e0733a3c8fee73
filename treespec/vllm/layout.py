"""How the trees that vLLM scheduled are laid out in the flat batch of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treespec.drafters.base import single_nodes
from treespec.tree import TreeBatch, Verdict
from treespec.vllm.drafts import Draft, scheduled_trees
from treespec.vllm.segments import SegmentPlan, StepTrees, plan_segments


@dataclass
class Step:
    """One pass: its trees, their segments, and what came of them.

    `plan` is None where nothing was drafted. `num_prompt`: tokens of chunks of prompts. `logits` [M, V], of request i
    from row `starts[i]` on.
    """

    trees: TreeBatch
    plan: SegmentPlan | None
    flat: StepTrees
    num_prompt: int
    verdicts: Sequence[Verdict] = ()
    logits: Tensor | None = None
    starts: Sequence[int] = ()


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
    is_plain = not num_drafts.any()
    trees = (
        single_nodes(torch.tensor(roots, device="cpu"))
        if is_plain
        else scheduled_trees(list(map(drafts.get, requests)), roots, scheduled)
    )
    firsts = np.cumsum(counts) - counts
    flat = StepTrees(trees.parents.numpy(), trees.depths.numpy(), firsts, firsts + before, positions, num_drafts)
    num_prompt = int(before.sum())
    if is_plain:
        return Step(trees, None, flat, num_prompt)
    return Step(trees, plan_segments(flat, table.get_numpy_array(), table.block_size, scratch), flat, num_prompt)
