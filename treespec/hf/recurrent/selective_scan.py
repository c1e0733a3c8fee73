"""The selective scan of Mamba-1 (arXiv 2312.00752) over trees: h <- exp(t A) h + t x B' per channel, read by C' h.

Decays differ by channel and entry of the state, so that a chunk form would hold one for every pair of nodes. Here the
states of all nodes of a layer are made level by level from their parents', and dropped again when they have been read.

Axis letters: n size of a state.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.hf.recurrent.layers import TreePass
from treespec.hf.recurrent.nodes import Paths, TreeNodes, joined


class ScanNodes(NamedTuple):
    """Pending nodes: step sizes t, inputs x and B; and A, which does not depend on them."""

    steps: Float[Tensor, "B N channels"]
    inputs: Float[Tensor, "B N channels"]
    writes: Float[Tensor, "B N n"]
    log_decays: Float[Tensor, "channels n"]

    def after(
        self, states: Float[Tensor, "*M channels n"], *index: Int[Tensor, "*M"]
    ) -> Float[Tensor, "*M channels n"]:
        """The states after nodes, from those before them."""
        steps, writes = self.steps[index].unsqueeze(-1), self.writes[index].unsqueeze(-2)
        return (steps * self.log_decays).exp() * states + steps * writes * self.inputs[index].unsqueeze(-1)

    def folded(self, state: Float[Tensor, "B channels n"] | None, paths: Paths) -> Float[Tensor, "B channels n"]:
        """The state after the paths' nodes, one by one as plain steps."""
        paths = paths.to(self.steps.device)
        rows = torch.arange(len(self.steps), device=self.steps.device)
        state = self.steps.new_zeros(()).expand(len(rows), *self.log_decays.shape) if state is None else state
        for nodes, is_node in zip(paths.nodes.T, paths.is_node.T, strict=True):
            state = torch.where(is_node[:, None, None], self.after(state.float(), rows, nodes), state)
        return state

    def select_rows(self, rows: Int[Tensor, " R"]) -> ScanNodes:
        steps, inputs, writes = (part.index_select(0, rows.to(part.device)) for part in self[:3])
        return ScanNodes(steps, inputs, writes, self.log_decays)


def tree_selective_scan(
    tree_pass: TreePass,
    hidden_states: Float[Tensor, "B channels F"],
    dt: Float[Tensor, "B channels F"],
    A: Float[Tensor, "channels n"],
    B: Float[Tensor, "B n F"],
    C: Float[Tensor, "B n F"],
    D: Float[Tensor, " channels"] | None = None,
    z: Float[Tensor, "B channels F"] | None = None,
    delta_bias: Float[Tensor, " channels"] | None = None,
    delta_softplus: bool = False,
    **_: Any,
) -> tuple[Float[Tensor, "B channels F"], Float[Tensor, "B channels n"]]:
    """Replaces `selective_scan_fn`; the second stands for the final state."""
    dt = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[:, None]
    dt = torch.nn.functional.softplus(dt) if delta_softplus else dt
    steps, inputs, writes, reads = (part.float().transpose(1, 2) for part in (dt, hidden_states, B, C))
    new = ScanNodes(steps, inputs, writes, A.float())
    result = tree_pass.scan(partial(_scan, new, reads), num_axes=3).transpose(1, 2)
    result = result if D is None else result + hidden_states * D[:, None]
    result = result if z is None else result * torch.nn.functional.silu(z)
    return result, result.new_zeros(()).expand(len(result), *A.shape)


def _scan(
    new: ScanNodes,
    reads: Float[Tensor, "B F n"],
    nodes: TreeNodes,
    state: Float[Tensor, "B channels n"] | None,
    old: ScanNodes | None,
) -> tuple[Float[Tensor, "B F channels"], ScanNodes]:
    kept = new
    if old is not None:
        steps, inputs, writes = joined(old[:3], new[:3], nodes.num_old, 1)
        kept = ScanNodes(steps, inputs, writes, new.log_decays)
    # The last one is the state before the root, which parent -1 finds.
    states = kept.steps.new_zeros(len(reads), kept.steps.shape[1] + 1, *new.log_decays.shape)
    if state is not None:
        states[:, -1] = state
    for level in nodes.levels:
        rows, ids, parents = (part.to(states.device) for part in level)
        states[rows, ids] = kept.after(states[rows, parents], rows, ids)
    return (states[:, nodes.num_old : -1] @ reads.unsqueeze(-1)).squeeze(-1), kept
