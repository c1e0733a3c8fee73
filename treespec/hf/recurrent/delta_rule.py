"""The gated delta rule over trees (arXiv 2412.06464; a decay per channel: Kimi Linear, arXiv 2510.26692).

A node writes w = b (v - S' k), where S, decayed, holds what its ancestors wrote. So the w of all nodes solve the
triangular system (I + L) w = b (v - exp(G) k' S), in which L_ij = b_i exp(G_i - G_j) (k_i' k_j) for ancestors j of i,
and 0 for all other nodes. Nodes in parents-first order keep it triangular.

Axis letters: c log decays per node, v size of values.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.hf.recurrent.layers import TreePass
from treespec.hf.recurrent.linear import LinearNodes, path_products, path_sums, read
from treespec.hf.recurrent.nodes import TreeNodes, joined

_EPSILON = 1e-6
"""That of transformers and fla where they normalise queries and keys."""


def tree_delta_rule(
    tree_pass: TreePass,
    query: Float[Tensor, "B F G d"],
    key: Float[Tensor, "B F G d"],
    value: Float[Tensor, "B F A v"],
    g: Float[Tensor, "B F A ..."],
    beta: Float[Tensor, "B F A"],
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Float[Tensor, "B F A v"], Float[Tensor, "B A d v"]]:
    """Replaces `chunk_gated_delta_rule` and `chunk_kda`; the second stands for the final state."""
    query, key = (part.float() for part in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (part * (part.square().sum(-1, keepdim=True) + _EPSILON).rsqrt() for part in (query, key))
    query = query * query.shape[-1] ** -0.5
    per_key = value.shape[2] // key.shape[2]
    decays = g if g.ndim == value.ndim else g.unsqueeze(-1)
    parts = (query.repeat_interleave(per_key, 2), key.repeat_interleave(per_key, 2), value, decays, beta.unsqueeze(-1))
    result = tree_pass.scan(partial(_delta_rule, *(part.float().transpose(1, 2) for part in parts)), num_axes=4)
    final = result.new_zeros(()).expand(*result.shape[:2], key.shape[-1], value.shape[-1])
    return result.transpose(1, 2).to(value.dtype), final


def _delta_rule(
    queries: Float[Tensor, "B A F d"],
    keys: Float[Tensor, "B A F d"],
    values: Float[Tensor, "B A F v"],
    log_decays: Float[Tensor, "B A F c"],
    rates: Float[Tensor, "B A F 1"],
    nodes: TreeNodes,
    state: Float[Tensor, "B A d v"] | None,
    old: LinearNodes | None,
) -> tuple[Float[Tensor, "B A F v"], LinearNodes]:
    all_keys, log_decays, written = keys, log_decays, values[:, :, :0]
    if old is not None:
        all_keys, log_decays = joined((old.keys, old.log_decays), (keys, log_decays), nodes.num_old, 2)
        written = old.values[:, :, : nodes.num_old]
    sums = path_sums(nodes, log_decays)
    products, weights = path_products(nodes, [keys, queries], all_keys, sums)
    system = rates * products
    if state is not None:
        state = state.float()
        values = values - (keys * sums[:, :, nodes.num_old :].float().exp()) @ state
    right = rates * values - system[..., : nodes.num_old] @ written
    # Only what is below the diagonal is read: the new nodes' strict ancestors.
    new = torch.linalg.solve_triangular(system[..., nodes.num_old :], right, upper=False, unitriangular=True)
    kept = LinearNodes(all_keys, torch.cat([written, new], 2), log_decays, sums)
    return read(queries, kept, state, weights), kept
