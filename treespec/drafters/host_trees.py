"""Trees grown on the host, and their way into a batch."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TypeGuard

import torch
from torch import Tensor

from treespec.checks import AUTO
from treespec.policies import BestFirst
from treespec.policies.heap import HostTree, State, grow_best_first
from treespec.protocols import TreePolicy
from treespec.tree import PADDING_PARENT, SELECTED, TreeBatch


def can_use_heap(policy: TreePolicy) -> TypeGuard[BestFirst]:
    """Whether a heap on the host grows this policy's trees of candidates, up to the order of equal values.

    It saves a dozen operators per level. A subclass of `BestFirst` may grow other trees.
    """
    if type(policy) is not BestFirst or policy.children not in (AUTO, SELECTED):
        return False
    return policy.beam is None and policy.branching is None and policy.min_gain == 0


def grow_on_host(
    policy: BestFirst,
    root_token: int,
    root: State,
    children_of: Callable[[State], Sequence[tuple[float, int, State]]],
    max_depth: int,
) -> HostTree:
    """See `grow_best_first`."""
    depth = min(max_depth, policy.depth or max_depth)
    return grow_best_first(root_token, root, children_of, policy.num_nodes, depth)


def stack_trees(trees: Sequence[HostTree], device: torch.device) -> TreeBatch:
    """Host trees of selected children, padded to one batch on `device`."""
    width = max(len(tree.tokens) for tree in trees)

    def pad(rows: Sequence[Sequence[float]], filler: int, dtype: torch.dtype) -> Tensor:
        padded = [[*row, *[filler] * (width - len(row))] for row in rows]
        return torch.tensor(padded, dtype=dtype).to(device, non_blocking=True)

    return TreeBatch(
        tokens=pad([t.tokens for t in trees], 0, torch.int64),
        parents=pad([t.parents for t in trees], PADDING_PARENT, torch.int64),
        values=pad([t.values for t in trees], 0, torch.float32),
    )


def to_device(batch: TreeBatch, device: torch.device) -> TreeBatch:
    """The batch with all its tensors on `device`."""
    if batch.device == device:
        return batch
    tensors = {f.name: getattr(batch, f.name) for f in fields(batch) if isinstance(getattr(batch, f.name), Tensor)}
    return replace(batch, **{name: tensor.to(device) for name, tensor in tensors.items()})
