"""One pass over the nodes that finds every law and every probability of acceptance before any coin is looked at."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from treespec.tree import POINT_MASS, TreeBatch
from treespec.verification.dense.indexing import at


class Scan(NamedTuple):
    """What one pass over the nodes finds, before any coin is looked at.

    `probs` float [B, N]: the probability of accepting a node given that everything judged before it was rejected.
    `laws` float [B, N, V]: the law of the token after a node where its children were all rejected.
    """

    probs: Tensor
    laws: Tensor


def scan_rejection(trees: TreeBatch, target_probs: Tensor) -> Scan:
    """Recursive rejection for all nodes at once: no node's probability depends on another parent's."""
    laws, probs = _start(trees, target_probs)
    rows = torch.arange(trees.num_rows, device=laws.device)
    for node in range(1, trees.max_nodes):
        parent = trees.parents[:, node].clamp(0, node - 1)
        law, token = laws[rows, parent], _token(trees, node, laws.shape[-1])
        draft_law = _proposal_law(trees, node, laws.shape[-1], laws.dtype)
        probs[:, node] = (at(law, token) / at(draft_law, token)).clamp(max=1)
        rest = (law - draft_law).clamp(min=0)
        total = rest.sum(-1, keepdim=True)
        laws[rows, parent] = torch.where(_is_child(trees, node) & (total > 0), rest / total, law)
    return Scan(probs, laws)


def scan_traversal(trees: TreeBatch, target_probs: Tensor) -> Scan:
    """Traversal for all nodes at once: a node is entered with a mass that its parent and earlier siblings decide.

    A node's column of `probs` first holds the mass that it is entered with, and last the one that is left when its
    children are all rejected: the probability of accepting the node itself. The root is always accepted.
    """
    laws, probs = _start(trees, target_probs)
    probs[:, 0] = 1
    rows = torch.arange(trees.num_rows, device=laws.device)
    for node in range(1, trees.max_nodes):
        parent = trees.parents[:, node].clamp(0, node - 1)
        law, token = laws[rows, parent], _token(trees, node, laws.shape[-1])
        draft_law = _proposal_law(trees, node, laws.shape[-1], laws.dtype)
        mass = probs[rows, parent].unsqueeze(-1)
        weights = mass * law
        probs[:, node] = (at(weights, token) / at(draft_law, token)).clamp(max=1)
        rest = (weights - draft_law).clamp(min=0)
        total = rest.sum(-1, keepdim=True)
        is_child, has_rest = _is_child(trees, node), total > 0
        laws[rows, parent] = torch.where(is_child & has_rest, rest / total, law)
        # Mass zero closes the node: later siblings are entered with nothing, and only a root is accepted.
        left = torch.where(has_rest, total / (total + (1 - mass)), torch.zeros_like(mass))
        probs[rows, parent] = torch.where(is_child, left, mass).squeeze(-1)
    probs[:, 0] = 1
    return Scan(probs, laws)


def _start(trees: TreeBatch, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Working copies: laws [B, N, V] and empty probabilities [B, N], in the dtype that the walk would end up in."""
    dtype = target_probs.dtype
    if trees.laws is not None:
        dtype = torch.promote_types(dtype, trees.laws.dtype)
    laws = target_probs.to(dtype, copy=True)
    return laws, laws.new_zeros(trees.tokens.shape)


def _token(trees: TreeBatch, node: int, vocab_size: int) -> Tensor:
    """int64 [B], forced into the vocabulary: `is_drafted_tree` reports tokens outside of it."""
    return trees.tokens[:, node].clamp(0, vocab_size - 1)


def _is_child(trees: TreeBatch, node: int) -> Tensor:
    """bool [B, 1]: False on padding."""
    return (trees.parents[:, node] >= 0).unsqueeze(1)


def _proposal_law(trees: TreeBatch, node: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
    """The law that the node's token was drawn from, as `TokenTree.law` gives it; one-hot where selected: [B, V]."""
    # torch's one_hot reads its values on the host.
    point_mass = (torch.arange(vocab_size, device=trees.device) == _token(trees, node, vocab_size)[:, None]).to(dtype)
    if trees.laws is None or trees.law_index is None:
        return point_mass
    row = trees.law_index[:, node]
    law = trees.laws[row.clamp(0, trees.laws.shape[0] - 1)]
    if trees.is_without_replacement is not None:
        law = _without_earlier(trees, node, law)
    return torch.where((row == POINT_MASS).unsqueeze(1), point_mass, law.to(dtype))


def _without_earlier(trees: TreeBatch, node: int, law: Tensor) -> Tensor:
    """The law [B, V] less the tokens of earlier siblings from the same row, where drawn without replacement."""
    row, flags, parents = trees.law_index, trees.is_without_replacement, trees.parents
    assert row is not None, "laws come with their index"
    assert flags is not None, "asked for only where there are flags"
    is_taken = (parents[:, :node] == parents[:, node, None]) & (row[:, :node] == row[:, node, None])
    is_taken = is_taken & flags[:, node, None]
    tokens = trees.tokens[:, :node].clamp(0, law.shape[1] - 1)
    # amin and not a plain scatter: a token may stand on an earlier node that is no sibling, too.
    kept = torch.ones_like(law).scatter_reduce(1, tokens, (~is_taken).to(law.dtype), "amin")
    rest = law * kept
    return torch.where(is_taken.any(1, keepdim=True), rest / rest.sum(-1, keepdim=True), law)
