"""One pass over the nodes that finds every distribution and probability of acceptance before any coin is compared."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from treespec.tree import POINT_MASS, TreeBatch

Uniforms = Float[Tensor, "B N"]
Probs = Float[Tensor, "B N V"]


class Scan(NamedTuple):
    """What one pass over the nodes finds."""

    accept_probs: Tensor
    """[B, N], the probability of accepting a node given that all nodes verified before it were rejected."""
    next_probs: Tensor
    """[B, N, V], the distribution of the token after a node whose children were all rejected."""


def scan_rejection(trees: TreeBatch, target_probs: Probs) -> Scan:
    """Recursive rejection for all nodes at once: no node's probability depends on another parent's."""
    accept_probs, next_probs = _start(trees, target_probs)
    rows = torch.arange(trees.num_rows, device=next_probs.device)
    for node in range(1, trees.max_nodes):
        parent, is_child = _parent(trees, node)
        probs = next_probs[rows, parent]
        accept_probs[:, node], rest = _ratio_and_residual(trees, node, probs)
        total = rest.sum(-1, keepdim=True)
        next_probs[rows, parent] = torch.where(is_child & (total > 0), rest / total, probs)
    return Scan(accept_probs, next_probs)


def scan_traversal(trees: TreeBatch, target_probs: Probs) -> Scan:
    """Traversal for all nodes at once: a node is entered with a mass that its parent and earlier siblings decide.

    A node's column of `accept_probs` first holds that mass, and last the one that is left when its children are all
    rejected: the probability of accepting the node itself. The root is always accepted.
    """
    accept_probs, next_probs = _start(trees, target_probs)
    accept_probs[:, 0] = 1
    rows = torch.arange(trees.num_rows, device=next_probs.device)
    for node in range(1, trees.max_nodes):
        parent, is_child = _parent(trees, node)
        probs, mass = next_probs[rows, parent], accept_probs[rows, parent].unsqueeze(-1)
        accept_probs[:, node], rest = _ratio_and_residual(trees, node, mass * probs)
        total = rest.sum(-1, keepdim=True)
        has_rest = total > 0
        next_probs[rows, parent] = torch.where(is_child & has_rest, rest / total, probs)
        # Mass zero closes the node: later siblings are entered with nothing, and only a root is accepted.
        left = torch.where(has_rest, total / (total + (1 - mass)), torch.zeros_like(mass))
        accept_probs[rows, parent] = torch.where(is_child, left, mass).squeeze(-1)
    accept_probs[:, 0] = 1
    return Scan(accept_probs, next_probs)


def at(values: Shaped[Tensor, "B M"], index: Int[Tensor, " B"]) -> Shaped[Tensor, " B"]:
    """`values[b, index[b]]`."""
    return values.gather(1, index.unsqueeze(1)).squeeze(1)


def _start(trees: TreeBatch, target_probs: Probs) -> tuple[Float[Tensor, "B N"], Probs]:
    """Empty probabilities and a copy of the distributions, in the dtype that the rule's `verify` would end up in."""
    dtype = target_probs.dtype
    if trees.draft_probs is not None:
        dtype = torch.promote_types(dtype, trees.draft_probs.dtype)
    probs = target_probs.to(dtype, copy=True)
    return probs.new_zeros(trees.tokens.shape), probs


def _parent(trees: TreeBatch, node: int) -> tuple[Int[Tensor, " B"], Bool[Tensor, "B 1"]]:
    """Every row's parent of a node, and whether it has one: padding has none."""
    parent = trees.parents[:, node]
    return parent.clamp(0, node - 1), (parent >= 0).unsqueeze(1)


def _ratio_and_residual(
    trees: TreeBatch, node: int, weights: Float[Tensor, "B V"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B V"]]:
    """`min(1, w[x] / q[x])` and `(w - q)+` of a node's token x, drawn from q."""
    # Forced into the vocabulary: `is_verifiable` reports tokens outside of it.
    token = trees.tokens[:, node].clamp(0, weights.shape[-1] - 1)
    draft_probs = _draft_probs(trees, node, token, weights)
    return (at(weights, token) / at(draft_probs, token)).clamp(max=1), (weights - draft_probs).clamp(min=0)


def _draft_probs(
    trees: TreeBatch, node: int, token: Int[Tensor, " B"], weights: Float[Tensor, "B V"]
) -> Float[Tensor, "B V"]:
    """What the node's token was drawn from, as `TokenTree.draft_probs_of` gives it; one-hot where selected."""
    # torch's one_hot reads its values on the host.
    point_mass = (torch.arange(weights.shape[-1], device=trees.device) == token.unsqueeze(1)).to(weights.dtype)
    if trees.draft_probs is None or trees.draft_index is None:
        return point_mass
    row = trees.draft_index[:, node]
    probs = trees.draft_probs[row.clamp(0, trees.draft_probs.shape[0] - 1)]
    if trees.is_without_replacement is not None:
        probs = _without_earlier(trees, node, probs)
    return torch.where((row == POINT_MASS).unsqueeze(1), point_mass, probs.to(weights.dtype))


def _without_earlier(trees: TreeBatch, node: int, probs: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """The distribution less the tokens of earlier siblings from the same row, where drawn without replacement."""
    row, flags, parents = trees.draft_index, trees.is_without_replacement, trees.parents
    assert row is not None
    assert flags is not None
    is_taken = (parents[:, :node] == parents[:, node, None]) & (row[:, :node] == row[:, node, None])
    is_taken = is_taken & flags[:, node, None]
    tokens = trees.tokens[:, :node].clamp(0, probs.shape[1] - 1)
    # amin and not a plain scatter: an earlier node that is no sibling may carry the same token.
    kept = torch.ones_like(probs).scatter_reduce(1, tokens, (~is_taken).to(probs.dtype), "amin")
    rest = probs * kept
    return torch.where(is_taken.any(1, keepdim=True), rest / rest.sum(-1, keepdim=True), probs)
