"""Best-first trees that a heap on the host grows for drafters without draft passes."""

from collections.abc import Callable, Sequence
from typing import TypeGuard

from treespec.checks import AUTO
from treespec.policies import BestFirst
from treespec.policies.control import StoppedBestFirst
from treespec.policies.heap import State, grow_best_first
from treespec.protocols import TreePolicy
from treespec.tree import SELECTED, HostTree


def can_use_heap(policy: TreePolicy) -> TypeGuard[BestFirst]:
    """Whether a heap on the host grows this policy's trees of candidates, up to the order of equal values.

    It saves a dozen operators per level. A subclass of `BestFirst` may grow other trees; one that stops for the sake of
    draft passes need not do so here.
    """
    if not isinstance(policy, BestFirst) or type(policy) not in (BestFirst, StoppedBestFirst):
        return False
    if policy.children not in (AUTO, SELECTED):
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
