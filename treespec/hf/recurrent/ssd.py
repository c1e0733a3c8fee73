"""The recurrence of Mamba-2 (state space duality, arXiv 2405.21060) over trees: `linear.py` with keys B and queries C.

Axis letters: v size of values.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.hf.recurrent.layers import TreePass
from treespec.hf.recurrent.linear import LinearNodes, scan_linear
from treespec.hf.recurrent.nodes import Paths, TreeNodes


class SSDNodes(LinearNodes):
    """Pending nodes; transformers keeps the state with its axes the other way round."""

    def folded(self, state: Float[Tensor, "B A v d"] | None, paths: Paths) -> Float[Tensor, "B A v d"]:
        return super().folded(None if state is None else state.transpose(2, 3), paths).transpose(2, 3)


def tree_ssd(
    tree_pass: TreePass,
    hidden_states: Float[Tensor, "B F A v"],
    dt: Float[Tensor, "B F A"],
    A: Float[Tensor, " A"],
    B: Float[Tensor, "B F G d"],
    C: Float[Tensor, "B F G d"],
    chunk_size: int,
    D: Float[Tensor, " A"] | None = None,
    dt_bias: Float[Tensor, " A"] | None = None,
    dt_softplus: bool = False,
    **_: Any,
) -> tuple[Float[Tensor, "B F A v"], Float[Tensor, "B A v d"]]:
    """Replaces `mamba_chunk_scan_combined`; the second stands for the final state."""
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt = torch.nn.functional.softplus(dt) if dt_softplus else dt
    dt = dt.float().unsqueeze(-1)
    inputs = hidden_states.float()
    per_group = inputs.shape[2] // B.shape[2]
    queries, keys = (part.float().repeat_interleave(per_group, 2) for part in (C, B))
    parts = (queries, keys, inputs * dt, A.float()[:, None] * dt)
    result = tree_pass.scan(partial(_ssd, *(part.transpose(1, 2) for part in parts)), num_axes=4).transpose(1, 2)
    final = result.new_zeros(()).expand(len(result), *result.shape[2:], B.shape[-1])
    return (result if D is None else result + D[:, None] * inputs).contiguous(), final


def _ssd(
    queries: Float[Tensor, "B A F d"],
    keys: Float[Tensor, "B A F d"],
    values: Float[Tensor, "B A F v"],
    log_decays: Float[Tensor, "B A F 1"],
    nodes: TreeNodes,
    state: Float[Tensor, "B A v d"] | None,
    old: SSDNodes | None,
) -> tuple[Float[Tensor, "B A F v"], SSDNodes]:
    state = None if state is None else state.transpose(2, 3)
    result, kept = scan_linear(queries, keys, values, log_decays, nodes, state, old)
    return result, SSDNodes(*kept)
