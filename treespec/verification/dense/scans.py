"""One pass over the nodes that finds every distribution and probability of acceptance before any coin is compared.

A node waits for its parent and its earlier siblings alone. So the nodes are taken in waves, each of them all nodes of a
batch that wait for nothing else any more: the number of operations is that of the waves, not that of the nodes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.tree import POINT_MASS, TreeBatch
from treespec.tree.transfer import upload

Uniforms = Float[Tensor, "B N"]
Probs = Float[Tensor, "B N V"]


class Scan(NamedTuple):
    """What one pass over the nodes finds."""

    accept_probs: Float[Tensor, "B N"]
    """The probability of accepting a node given that all nodes verified before it were rejected."""
    next_probs: Float[Tensor, "B N V"]
    """The distribution of the token after a node whose children were all rejected."""
    drawn_probs: Float[Tensor, "M"]
    """The draft's probability of every drawn child's token after its earlier siblings, which must not be zero."""


class _Waves(NamedTuple):
    """The M children of a batch, wave by wave; a node's wave number is `row * N + node`."""

    ends: list[int]
    nodes: Int[np.ndarray, "M"]
    parents: Int[np.ndarray, "M"]
    tokens: Int[np.ndarray, "M"]
    draft_rows: Int[np.ndarray, "M"]
    taken: list[tuple[int, int]]
    """(child, token): the tokens of earlier siblings that a child, by its number among the M, was drawn without."""


def scan_rejection(trees: TreeBatch, target_probs: Probs) -> Scan:
    """Recursive rejection for all nodes at once: no node's probability depends on another parent's."""
    return _scan(trees, target_probs, _in_waves(trees, waits_for_parent=False), has_masses=False)


def scan_traversal(trees: TreeBatch, target_probs: Probs) -> Scan:
    """Traversal for all nodes at once: a node is entered with a mass that its parent and earlier siblings decide.

    A node's `accept_probs` first hold the mass that it is entered with, and last the one that is left when its children
    are all rejected: the probability of accepting the node itself. The root is always accepted.
    """
    return _scan(trees, target_probs, _in_waves(trees, waits_for_parent=True), has_masses=True)


def _scan(trees: TreeBatch, target_probs: Probs, waves: _Waves, has_masses: bool) -> Scan:
    shape = target_probs.shape
    dtype = target_probs.dtype
    if trees.draft_probs is not None:  # What the rule's `verify` would end up in.
        dtype = torch.promote_types(dtype, trees.draft_probs.dtype)
    probs = target_probs.to(dtype, copy=True).flatten(0, 1)
    accept_probs = probs.new_ones(len(probs), 1)
    arrays = waves.nodes, waves.parents, waves.tokens, *_draft_arrays(trees, waves)
    nodes, parents, tokens, *index = upload(probs.device, *map(torch.from_numpy, arrays))
    draft_probs = _draft_probs(trees, waves, tokens, probs, index)
    drawn_probs = draft_probs.gather(1, tokens.unsqueeze(1))
    for wave in (slice(*ends) for ends in pairwise(waves.ends)):
        above = parents[wave]
        token = tokens[wave].unsqueeze(1)
        before = probs[above]
        mass = accept_probs[above] if has_masses else None
        weights = before if mass is None else before * mass
        accept_probs[nodes[wave]] = (weights.gather(1, token) / drawn_probs[wave]).clamp(max=1)
        rest = (weights - draft_probs[wave]).clamp(min=0)
        total = rest.sum(-1, keepdim=True)
        has_rest = total > 0
        probs[above] = torch.where(has_rest, rest / total, before)
        if mass is not None:
            # Mass zero closes the node: later siblings are entered with nothing, and only a root is accepted.
            accept_probs[above] = torch.where(has_rest, total / (total + (1 - mass)), 0.0)
    return Scan(accept_probs.view(shape[:2]), probs.view(shape), drawn_probs.squeeze(1))


def _draft_arrays(trees: TreeBatch, waves: _Waves) -> list[np.ndarray]:
    """Where the draft's distributions lie and what is missing in them, for `_draft_probs`; nothing if none was drawn.

    Rows of the table int64 [M]; children, and tokens that they were drawn without, int64 each; whether a child was
    selected, and whether it was drawn without any token, bool [M].
    """
    is_selected = waves.draft_rows == POINT_MASS
    if trees.draft_probs is None or is_selected.all():
        return []
    taken = np.array(waves.taken, dtype=np.int64).reshape(-1, 2).T.copy()
    return [np.maximum(waves.draft_rows, 0), *taken, is_selected, np.isin(np.arange(len(is_selected)), taken[0])]


def _draft_probs(
    trees: TreeBatch, waves: _Waves, tokens: Int[Tensor, "M"], like: Float[Tensor, "_ V"], index: Sequence[Tensor]
) -> Float[Tensor, "M V"]:
    """What every child was drawn from, as `TokenTree.draft_probs_of` gives it; one-hot where selected.

    `index`: `_draft_arrays` on the device.
    """
    if trees.draft_probs is None or not index:
        return like.new_zeros(len(tokens), like.shape[1]).scatter_(1, tokens.unsqueeze(1), 1.0)
    rows, children, gone, is_point_mass, is_less = index
    probs = trees.draft_probs.to(like.device)[rows].to(like.dtype)
    if len(children):
        probs[children, gone] = 0.0
        probs = probs / torch.where(is_less.unsqueeze(1), probs.sum(-1, keepdim=True), 1.0)
    if (waves.draft_rows == POINT_MASS).any():
        point_masses = torch.zeros_like(probs).scatter_(1, tokens.unsqueeze(1), 1.0)
        probs = torch.where(is_point_mass.unsqueeze(1), point_masses, probs)
    return probs


def _in_waves(trees: TreeBatch, waits_for_parent: bool) -> _Waves:
    """A child's wave: one after its earlier sibling's and, where it waits for it, after its parent's."""
    found: list[tuple[int, ...]] = []
    taken: dict[int, list[int]] = {}
    for row, tree in enumerate(trees.trees):
        first = row * trees.max_nodes
        starts = [0] * tree.num_nodes
        for parent, children in enumerate(tree.children_lists):
            for rank, child in enumerate(children):
                wave = rank + (starts[parent] if waits_for_parent else 0)
                starts[child] = wave + 1
                draft_row = tree.draft_index_list[child]
                found.append((wave, first + child, first + parent, tree.token(child), draft_row))
                if draft_row != POINT_MASS and tree.is_without_replacement_list[child]:
                    earlier = (c for c in children[:rank] if tree.draft_index_list[c] == draft_row)
                    taken[first + child] = [tree.token(c) for c in earlier]
    waves, nodes, parents, tokens, draft_rows = np.array(sorted(found), dtype=np.int64).reshape(-1, 5).T.copy()
    ends = [0, *np.cumsum(np.bincount(waves)).tolist()]
    pairs = [(number, token) for number, node in enumerate(nodes.tolist()) for token in taken.get(node, ())]
    return _Waves(ends, nodes, parents, tokens, draft_rows, pairs)
