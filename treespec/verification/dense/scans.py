"""One pass over the nodes that finds every distribution and every probability of acceptance before any coin is looked
at."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from treespec.tree import POINT_MASS, TreeBatch
from treespec.verification.dense.indexing import at


class Scan(NamedTuple):
    """What one pass over the nodes finds, before any coin is looked at.

    `accept_probs` float [B, N]: the probability of accepting a node given that all nodes verified before it were
    rejected. `next_probs` float [B, N, V]: the distribution of the token after a node whose children were all rejected.
    """

    accept_probs: Tensor
    next_probs: Tensor


def scan_rejection(trees: TreeBatch, target_probs: Tensor) -> Scan:
    """Recursive rejection for all nodes at once: no node's probability depends on another parent's."""
    next_probs, accept_probs = _start(trees, target_probs)
    rows = torch.arange(trees.num_rows, device=next_probs.device)
    for node in range(1, trees.max_nodes):
        parent = trees.parents[:, node].clamp(0, node - 1)
        probs, token = next_probs[rows, parent], _token(trees, node, next_probs.shape[-1])
        draft_probs = _draft_probs_of(trees, node, next_probs.shape[-1], next_probs.dtype)
        accept_probs[:, node] = (at(probs, token) / at(draft_probs, token)).clamp(max=1)
        rest = (probs - draft_probs).clamp(min=0)
        total = rest.sum(-1, keepdim=True)
        next_probs[rows, parent] = torch.where(_is_child(trees, node) & (total > 0), rest / total, probs)
    return Scan(accept_probs, next_probs)


def scan_traversal(trees: TreeBatch, target_probs: Tensor) -> Scan:
    """Traversal for all nodes at once: a node is entered with a mass that its parent and earlier siblings decide.

    A node's column of `accept_probs` first holds the mass that it is entered with, and last the one that is left when
    its children are all rejected: the probability of accepting the node itself. The root is always accepted.
    """
    next_probs, accept_probs = _start(trees, target_probs)
    accept_probs[:, 0] = 1
    rows = torch.arange(trees.num_rows, device=next_probs.device)
    for node in range(1, trees.max_nodes):
        parent = trees.parents[:, node].clamp(0, node - 1)
        probs, token = next_probs[rows, parent], _token(trees, node, next_probs.shape[-1])
        draft_probs = _draft_probs_of(trees, node, next_probs.shape[-1], next_probs.dtype)
        mass = accept_probs[rows, parent].unsqueeze(-1)
        weights = mass * probs
        accept_probs[:, node] = (at(weights, token) / at(draft_probs, token)).clamp(max=1)
        rest = (weights - draft_probs).clamp(min=0)
        total = rest.sum(-1, keepdim=True)
        is_child, has_rest = _is_child(trees, node), total > 0
        next_probs[rows, parent] = torch.where(is_child & has_rest, rest / total, probs)
        # Mass zero closes the node: later siblings are entered with nothing, and only a root is accepted.
        left = torch.where(has_rest, total / (total + (1 - mass)), torch.zeros_like(mass))
        accept_probs[rows, parent] = torch.where(is_child, left, mass).squeeze(-1)
    accept_probs[:, 0] = 1
    return Scan(accept_probs, next_probs)


def _start(trees: TreeBatch, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Working copies: distributions [B, N, V] and empty probabilities [B, N], in the dtype that the walk would
    end up in."""
    dtype = target_probs.dtype
    if trees.draft_probs is not None:
        dtype = torch.promote_types(dtype, trees.draft_probs.dtype)
    probs = target_probs.to(dtype, copy=True)
    return probs, probs.new_zeros(trees.tokens.shape)


def _token(trees: TreeBatch, node: int, vocab_size: int) -> Tensor:
    """int64 [B], forced into the vocabulary: `is_drafted_tree` reports tokens outside of it."""
    return trees.tokens[:, node].clamp(0, vocab_size - 1)


def _is_child(trees: TreeBatch, node: int) -> Tensor:
    """bool [B, 1]: False on padding."""
    return (trees.parents[:, node] >= 0).unsqueeze(1)


def _draft_probs_of(trees: TreeBatch, node: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
    """The distribution that the node's token was drawn from, as `TokenTree.draft_probs_of` gives it; one-hot
    where selected: [B, V]."""
    # torch's one_hot reads its values on the host.
    point_mass = (torch.arange(vocab_size, device=trees.device) == _token(trees, node, vocab_size)[:, None]).to(dtype)
    if trees.draft_probs is None or trees.draft_index is None:
        return point_mass
    row = trees.draft_index[:, node]
    probs = trees.draft_probs[row.clamp(0, trees.draft_probs.shape[0] - 1)]
    if trees.is_without_replacement is not None:
        probs = _without_earlier(trees, node, probs)
    return torch.where((row == POINT_MASS).unsqueeze(1), point_mass, probs.to(dtype))


def _without_earlier(trees: TreeBatch, node: int, probs: Tensor) -> Tensor:
    """The distribution [B, V] less the tokens of earlier siblings from the same row, where drawn without
    replacement."""
    row, flags, parents = trees.draft_index, trees.is_without_replacement, trees.parents
    assert row is not None, "distributions come with their index"
    assert flags is not None, "asked for only where there are flags"
    is_taken = (parents[:, :node] == parents[:, node, None]) & (row[:, :node] == row[:, node, None])
    is_taken = is_taken & flags[:, node, None]
    tokens = trees.tokens[:, :node].clamp(0, probs.shape[1] - 1)
    # amin and not a plain scatter: a token may stand on an earlier node that is no sibling, too.
    kept = torch.ones_like(probs).scatter_reduce(1, tokens, (~is_taken).to(probs.dtype), "amin")
    rest = probs * kept
    return torch.where(is_taken.any(1, keepdim=True), rest / rest.sum(-1, keepdim=True), probs)
