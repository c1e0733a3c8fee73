"""Trees grown on the host, and their way into a batch."""

from collections.abc import Callable, Sequence
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


def stack_trees(trees: Sequence[HostTree]) -> TreeBatch:
    """Host trees of selected children, padded to one batch."""
    width = max(len(tree.tokens) for tree in trees)

    def pad(rows: Sequence[Sequence[float]], filler: int, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows], dtype=dtype)

    return TreeBatch(
        tokens=pad([t.tokens for t in trees], 0, torch.int64),
        parents=pad([t.parents for t in trees], PADDING_PARENT, torch.int64),
        values=pad([t.values for t in trees], 0, torch.float32),
    )
