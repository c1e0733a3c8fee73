"""Whether arrays of the right shapes hold trees that can have been drafted: an error for one tree, a flag for many."""

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from treespec.checks import are_distributions
from treespec.errors import InvalidTreeError
from treespec.tree.arrays import PADDING_PARENT, POINT_MASS, ROOT_PARENT, TreeArrays

SUM_TOLERANCE = 1e-4
"""How far the entries of a draft distribution may sum from one."""


def check_drafted(tree: TreeArrays) -> None:
    """Raise for one tree, arrays [N], that cannot have been drafted.

    Raises `InvalidTreeError`: no root or two, a child before its parent, a draft index out of range, a draft
    distribution that does not sum to one, or a drawn token of probability zero.
    """
    _check_parents(tree.parents.tolist())
    if tree.draft_probs is None or tree.draft_index is None:
        return
    rows = tree.draft_index.tolist()
    num_rows = len(tree.draft_probs)
    if rows[0] != POINT_MASS or min(rows) < POINT_MASS or max(rows) >= num_rows:
        raise InvalidTreeError(f"draft_index must be -1 at the root and in [-1, {num_rows}) elsewhere, got {rows}")
    is_good = are_distributions(tree.draft_probs, SUM_TOLERANCE)
    if not bool(is_good.all()):
        row = int((~is_good).nonzero()[0])
        least, total = float(tree.draft_probs[row].min()), float(tree.draft_probs[row].sum())
        raise InvalidTreeError(
            f"distribution {row} is not a probability distribution: its entries sum to {total:.6g}, least {least:.6g}"
        )
    is_impossible = ~_can_be_drawn(tree) & (tree.draft_index != POINT_MASS)
    if bool(is_impossible.any()):
        node = int(is_impossible.nonzero()[0])
        raise InvalidTreeError(f"node {node} carries token {int(tree.tokens[node])}, which has draft probability zero")


def is_drafted(trees: TreeArrays) -> bool:
    """Whether every tree of a batch, arrays [B, N], would pass `check_drafted`; waits for the distributions' device."""
    if not is_well_formed(trees):
        return False
    if trees.draft_probs is None or trees.draft_index is None:
        return True
    is_drawn = _can_be_drawn(trees) | (trees.draft_index == POINT_MASS) | (trees.parents == PADDING_PARENT)
    return bool(is_drawn.all()) and bool(are_distributions(trees.draft_probs, SUM_TOLERANCE).all())


def is_well_formed(trees: TreeArrays) -> bool:
    """Whether roots come first, children after parents, padding last, and draft rows exist; waits for no device."""
    parents = trees.parents.numpy()
    if trees.draft_probs is None and parents.shape[1] == 1:  # Roots alone, as in steps without drafts.
        return bool((parents == ROOT_PARENT).all())
    is_node = parents != PADDING_PARENT
    in_order = (parents[:, 0] == ROOT_PARENT).all() and not (is_node[:, 1:] & ~is_node[:, :-1]).any()
    has_parents = ((parents >= 0) & (parents < np.arange(parents.shape[1])) | ~is_node)[:, 1:].all()
    if trees.draft_probs is None or trees.draft_index is None:
        return bool(in_order and has_parents)
    rows = trees.draft_index.numpy()
    has_rows = ((rows >= POINT_MASS) & (rows < len(trees.draft_probs)) | ~is_node).all()
    return bool(in_order and has_parents and has_rows)


def _check_parents(parents: list[int]) -> None:
    if parents[0] != ROOT_PARENT:
        raise InvalidTreeError(f"node 0 must be the root (parent -1), its parent is {parents[0]}")
    for node, parent in enumerate(parents[1:], start=1):
        if parent == ROOT_PARENT:
            raise InvalidTreeError(f"node {node} is a second root: only node 0 may have parent -1")
        if not 0 <= parent < node:
            raise InvalidTreeError(f"node {node} has parent {parent}: a parent must stand before its child (no cycles)")


def _can_be_drawn(trees: TreeArrays) -> Bool[Tensor, "*rows N"]:
    """Whether a token has a probability in its draft distribution, after its earlier siblings."""
    assert trees.draft_probs is not None
    assert trees.draft_index is not None
    num_distributions, vocab_size = trees.draft_probs.shape
    in_range = (trees.draft_index >= POINT_MASS) & (trees.draft_index < num_distributions)
    in_range = in_range & (trees.tokens >= 0) & (trees.tokens < vocab_size)
    row, token = trees.draft_index.clamp(0, num_distributions - 1), trees.tokens.clamp(0, vocab_size - 1)
    can_be_drawn = in_range & (trees.draft_probs[row, token].cpu() > 0)
    if trees.is_without_replacement is None:
        return can_be_drawn

    def is_same(values: Tensor) -> Tensor:
        return values.unsqueeze(-1) == values.unsqueeze(-2)

    # Without replacement an earlier sibling from the same row has taken its token.
    is_taken = is_same(trees.parents) & is_same(trees.draft_index) & is_same(trees.tokens)
    return can_be_drawn & ~(is_taken.tril(-1).any(-1) & trees.is_without_replacement)
