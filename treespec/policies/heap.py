"""Best-first growth on the host, for tables whose children cost a few look-ups: the exact best nodes by a heap."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TypeVar

from treespec.tree import HostTree

State = TypeVar("State")


def grow_best_first(
    root_token: int,
    root: State,
    children_of: Callable[[State], Sequence[tuple[float, int, State]]],
    num_nodes: int,
    max_depth: int,
    min_value: float = 0.0,
) -> HostTree:
    """The `num_nodes` most probable nodes, in order of falling path value, in O(num_nodes log num_nodes).

    A heap holds each found node's next sibling and first child (DDTree): values fall along both edges. `children_of`
    maps a node's state to its children's (probability, token, state), most probable first.
    """
    tree = HostTree([root_token], [-1], [1.0])
    heap: list[tuple[float, int, int, int, Sequence[tuple[float, int, State]], int]] = []
    order = count()

    def push(value: float, parent: int, depth: int, siblings: Sequence[tuple[float, int, State]], rank: int) -> None:
        if rank < len(siblings) and depth <= max_depth:
            heappush(heap, (-value * siblings[rank][0], next(order), parent, depth, siblings, rank))

    push(1.0, 0, 1, children_of(root), 0)
    while heap and len(tree.tokens) < num_nodes:
        negative, _, parent, depth, siblings, rank = heappop(heap)
        if -negative < min_value:
            break
        _, token, state = siblings[rank]
        node = len(tree.tokens)
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.values.append(-negative)
        push(tree.values[parent], parent, depth, siblings, rank + 1)
        if depth < max_depth and len(tree.tokens) < num_nodes:
            push(-negative, node, depth + 1, children_of(state), 0)
    return tree
