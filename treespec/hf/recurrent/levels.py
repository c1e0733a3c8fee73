"""Recurrences over trees level by level: the states of all nodes, each made from its parent's by the recurrence's step.

For states that are vectors, small enough for one per node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from treespec.hf.recurrent.layers import StateLayer
from treespec.hf.recurrent.nodes import Paths, TreeNodes

Step = Callable[..., tuple[Tensor, Tensor]]
"""One step of M nodes: from what the nodes feed in, [M, ...] each, and the states before them [M, ...] to what they
read, of the first input's shape and dtype, and the states after them."""


class NodeStates(NamedTuple):
    """The states after all pending nodes; the last one is the state before the root, which parent -1 finds."""

    states: Float[Tensor, "B N+1 ..."]

    def folded(self, state: Float[Tensor, "B ..."] | None, paths: Paths) -> Float[Tensor, "B ..."]:
        """The state after the paths' nodes; rows without any keep theirs."""
        nodes = paths.to(self.states.device)
        lengths = nodes.is_node.sum(1)
        last = nodes.nodes.gather(1, (lengths - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        return self.states[torch.arange(len(last), device=last.device), last.masked_fill(lengths == 0, -1)]

    def select_rows(self, rows: Int[Tensor, " R"]) -> NodeStates:
        return NodeStates(self.states.index_select(0, rows.to(self.states.device)))


def scan_levels(
    layer: StateLayer, step: Step, start: Float[Tensor, "B ..."], *inputs: Shaped[Tensor, "B F ..."]
) -> Shaped[Tensor, "B F ..."]:
    """Outputs of a recurrence for the new nodes, level by level; `start` is the state at the beginning of a text."""
    return layer.scan(partial(_scan, step, start, inputs), num_axes=start.ndim)


def _scan(
    step: Step,
    start: Float[Tensor, "B ..."],
    inputs: tuple[Shaped[Tensor, "B F ..."], ...],
    nodes: TreeNodes,
    state: Float[Tensor, "B ..."] | None,
    old: NodeStates | None,
) -> tuple[Shaped[Tensor, "B F ..."], NodeStates]:
    first = (start if state is None else state.to(start)).unsqueeze(1)
    known = first[:, :0] if old is None else old.states[:, : nodes.num_old]
    num_rows, num_new = inputs[0].shape[:2]
    states = torch.cat([known, first.new_zeros(num_rows, num_new, *first.shape[2:]), first], 1)
    result = torch.zeros_like(inputs[0])  # Shape and dtype of what nodes read; padding reads nothing.
    for level in nodes.new_levels:
        rows, ids, parents = (part.to(states.device) for part in level)
        new = ids - nodes.num_old
        result[rows, new], states[rows, ids] = step(*(part[rows, new] for part in inputs), states[rows, parents])
    return result, NodeStates(states)
