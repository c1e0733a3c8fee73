"""What the drafters share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TypeGuard

import torch
from torch import Tensor

from treespec.checks import AUTO
from treespec.errors import ConfigError
from treespec.policies import BestFirst
from treespec.policies.heap import HostTree, State, grow_best_first
from treespec.protocols import History, Session, TreePolicy
from treespec.tree import PADDING_PARENT, ROOT_PARENT, SELECTED, TreeBatch


class SessionSource:
    """What every `DraftSource` made of a call's session has in common."""

    _session: Session

    @property
    def root_tokens(self) -> Tensor:
        """int64 [B]."""
        return self._session.history.last_tokens

    @property
    def is_sampling(self) -> bool:
        """Whether the caller samples."""
        return self._session.is_sampling

    @property
    def generator(self) -> torch.Generator:
        """The draft's own random stream."""
        return self._session.generator


def policy_of_call(session: Session) -> TreePolicy:
    """Raises: ConfigError, unless the call has a tree policy."""
    if session.policy is None:
        raise ConfigError("no tree policy: give one to the call, for example tree=16")
    return session.policy


def depth_room(history: History, max_length: int | None) -> int:
    """The depth of trees for which a drafter that sees texts of `max_length` tokens has room: leaves are not read."""
    if max_length is None:
        return sys.maxsize
    longest = max(length - padding for length, padding in zip(history.lengths, history.num_padding, strict=True))
    return max_length + 1 - longest


def single_nodes(roots: Tensor) -> TreeBatch:
    """Trees without a draft token below `roots` int64 [B]."""
    tokens = roots.unsqueeze(1)
    return TreeBatch(tokens, torch.full_like(tokens, ROOT_PARENT), values=torch.ones_like(tokens, dtype=torch.float32))


def can_use_heap(policy: TreePolicy) -> TypeGuard[BestFirst]:
    """Whether a table on the host may grow this policy's trees of candidates by a heap.

    They are the same trees as the policy's own, equal values aside, without a dozen operators per level: a step must
    stay invisible. A subclass may grow others.
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
