"""Linear recurrences over trees: the state S [d, v] of a head changes by S <- exp(g) S + k w', and a query reads q' S.

Along a path the log decays g add up. With G, the sum along the path from the root to a node, a node i reads

    exp(G_i) q_i' S  +  sum over j in {i and its ancestors} of exp(G_i - G_j) (q_i' k_j) w_j

from the state S before the root: the form of one chunk in transformers, with the ancestor matrix for the causal one.
States are float32. So are decays, but of sums in float64: along long paths sums are large, differences of them small.

Axis letters: c log decays per node, one or as many as a key has entries, v size of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from treespec.hf.recurrent.nodes import Paths, TreeNodes, along, joined

_NUM_ROWS = 16
"""Nodes whose decays by channel, one for every ancestor and entry of a key, are made at a time: those of all nodes
would need more memory than the state, and that by the square of their number."""


class LinearNodes(NamedTuple):
    """Pending nodes: what they write, and the sums of log decays along their paths."""

    keys: Float[Tensor, "B A N d"]
    values: Float[Tensor, "B A N v"]
    log_decays: Float[Tensor, "B A N c"]
    sums: Float64[Tensor, "B A N c"]

    def folded(self, state: Float[Tensor, "B A d v"] | None, paths: Paths) -> Float[Tensor, "B A d v"]:
        """The state after the paths' nodes."""
        paths = paths.to(self.keys.device)
        keys, values, sums = (along(part, paths.nodes, 2) for part in (self.keys, self.values, self.sums))
        last = (paths.is_node.sum(1, keepdim=True) - 1).clamp(min=0)
        is_node = paths.is_node[:, None, :, None]
        # Rows without nodes keep their state to the last bit.
        end = along(sums, last, 2).masked_fill(~paths.is_node.any(1)[:, None, None, None], 0.0)
        weights = (end - sums).float().masked_fill(~is_node, -torch.inf).exp()
        written = (keys * weights).transpose(2, 3) @ values.masked_fill(~is_node, 0.0)
        return written if state is None else end.float().exp().transpose(2, 3) * state + written

    def select_rows(self, rows: Int[Tensor, " R"]) -> LinearNodes:
        return type(self)(*(part.index_select(0, rows.to(part.device)) for part in self))


def path_sums(nodes: TreeNodes, log_decays: Float[Tensor, "B A N c"]) -> Float64[Tensor, "B A N c"]:
    """The sums of all pending nodes' log decays along their paths."""
    exact = log_decays.double()
    return nodes.ancestors.to(exact).unsqueeze(1) @ exact


def path_products(
    nodes: TreeNodes,
    lefts: Sequence[Float[Tensor, "B A F d"]],
    right: Float[Tensor, "B A N d"],
    sums: Float64[Tensor, "B A N c"],
) -> list[Float[Tensor, "B A F N"]]:
    """Scalar products of new nodes with their ancestors and themselves, by the decay between; 0 with other nodes."""
    if sums.shape[-1] == 1:
        decays = _path_decays(nodes, sums, slice(None)).squeeze(-1)
        return [(left @ right.transpose(2, 3)) * decays for left in lefts]
    found = []
    for start in range(0, nodes.num_new, _NUM_ROWS):
        rows = slice(start, start + _NUM_ROWS)
        decayed = right.unsqueeze(2) * _path_decays(nodes, sums, rows)
        found.append([(decayed @ left[:, :, rows].unsqueeze(4)).squeeze(4) for left in lefts])
    return [torch.cat(parts, 2) for parts in zip(*found, strict=True)]


def _path_decays(nodes: TreeNodes, sums: Float64[Tensor, "B A N c"], rows: slice) -> Float[Tensor, "B A R N c"]:
    """The decay between new nodes and each of their ancestors, 1 to themselves, 0 to all other nodes."""
    is_above = nodes.ancestors[:, None, nodes.num_old :, :, None][:, :, rows].to(sums.device)
    differences = sums[:, :, nodes.num_old :][:, :, rows].unsqueeze(3) - sums.unsqueeze(2)
    return differences.float().masked_fill(~is_above, -torch.inf).exp()


def read(
    queries: Float[Tensor, "B A F d"],
    nodes: LinearNodes,
    state: Float[Tensor, "B A d v"] | None,
    weights: Float[Tensor, "B A F N"],
) -> Float[Tensor, "B A F v"]:
    """Outputs of the new nodes: their queries' products with the decayed state, plus the nodes' weighted values."""
    found = weights @ nodes.values
    if state is None:
        return found
    sums = nodes.sums[:, :, -queries.shape[2] :]
    return (queries * sums.float().exp()) @ state + found


def scan_linear(
    queries: Float[Tensor, "B A F d"],
    keys: Float[Tensor, "B A F d"],
    values: Float[Tensor, "B A F v"],
    log_decays: Float[Tensor, "B A F c"],
    nodes: TreeNodes,
    state: Float[Tensor, "B A d v"] | None,
    old: LinearNodes | None,
) -> tuple[Float[Tensor, "B A F v"], LinearNodes]:
    """A recurrence whose nodes write their values as they are."""
    if old is not None:
        keys, values, log_decays = joined(old[:3], (keys, values, log_decays), nodes.num_old, 2)
    sums = path_sums(nodes, log_decays)
    kept = LinearNodes(keys, values, log_decays, sums)
    (weights,) = path_products(nodes, [queries], keys, sums)
    return read(queries, kept, None if state is None else state.float(), weights), kept
