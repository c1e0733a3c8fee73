"""Whether arrays of the right shapes hold trees that can have been drafted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from treespec.errors import InvalidTreeError
from treespec.tree.arrays import TreeArrays
from treespec.tree.constants import PADDING_PARENT, POINT_MASS, ROOT_PARENT

if TYPE_CHECKING:
    from treespec.tree.token_tree import TokenTree


def check_structure(parents: list[int]) -> None:
    """Raise for parents that make no tree.

    Raises:
        InvalidTreeError: no or two roots, or a child before its parent.
    """
    if parents[0] != ROOT_PARENT:
        raise InvalidTreeError(f"node 0 must be the root (parent -1), its parent is {parents[0]}")
    for node, parent in enumerate(parents[1:], start=1):
        if parent == ROOT_PARENT:
            raise InvalidTreeError(f"node {node} is a second root: only node 0 may have parent -1")
        if not 0 <= parent < node:
            raise InvalidTreeError(f"node {node} has parent {parent}: a parent must stand before its child (no cycles)")


def check_distributions(tree: TokenTree) -> None:
    """Raise for distributions that the tree's tokens cannot have been drawn from.

    Raises:
        InvalidTreeError: a distribution index out of range, a distribution that is none, or a drawn token of
            probability zero.
    """
    if tree.draft_probs is None or tree.draft_index is None:
        return
    rows, num_distributions = tree.draft_index_list, tree.draft_probs.shape[0]
    if rows[0] != POINT_MASS or min(rows) < POINT_MASS or max(rows) >= num_distributions:
        raise InvalidTreeError(
            f"draft_index must be -1 at the root and in [-1, {num_distributions}) elsewhere, got {rows}"
        )
    sums = tree.draft_probs.sum(-1)
    bad = ((sums - 1).abs() <= 1e-4).logical_not() | (tree.draft_probs < 0).any(-1)
    if bad.any():
        row = int(bad.nonzero()[0])
        least, total = float(tree.draft_probs[row].min()), float(sums[row])
        raise InvalidTreeError(
            f"distribution {row} is not a probability distribution: its entries sum to {total:.6g}, least {least:.6g}"
        )
    for node in range(1, tree.num_nodes):
        probs, token = tree.draft_probs_of(node), tree.token(node)
        if probs is not None and not (0 <= token < probs.shape[0] and probs[token] > 0):
            raise InvalidTreeError(
                f"node {node} carries token {token}, which its draft distribution gives probability zero"
            )


def is_drafted(trees: TreeArrays) -> Tensor:
    """Whether a batch would pass `check_structure` and `check_distributions`, bool []: a flag, so that no device
    is awaited."""
    column = torch.arange(trees.tokens.shape[1], device=trees.tokens.device)
    is_node = trees.parents != PADDING_PARENT
    in_order = ((trees.parents < column) & (trees.parents >= 0)) | ~is_node
    good = in_order[:, 1:].all() & (trees.parents[:, 0] == ROOT_PARENT).all()
    good = good & (is_node.long().diff(dim=1) <= 0).all()
    if trees.draft_probs is None or trees.draft_index is None:
        return good
    num_distributions, vocab_size = trees.draft_probs.shape
    # Least entries, for comparing all of them takes a CPU ten times as long; NaN fails either comparison.
    sums_to_one = ((trees.draft_probs.sum(-1) - 1).abs() <= 1e-4).all() & (trees.draft_probs.amin(-1) >= 0).all()
    in_range = (trees.draft_index >= POINT_MASS) & (trees.draft_index < num_distributions)
    in_range = in_range & (trees.tokens >= 0) & (trees.tokens < vocab_size)
    # Forced into range, for an index outside of it would crash the device before the flag is read.
    row, token = trees.draft_index.clamp(0, num_distributions - 1), trees.tokens.clamp(0, vocab_size - 1)
    is_drawn = in_range & (trees.draft_probs[row, token] > 0) & ~_is_drawn_again(trees)
    return good & sums_to_one & (is_drawn | (trees.draft_index == POINT_MASS) | ~is_node).all()


def _is_drawn_again(trees: TreeArrays) -> Tensor:
    """bool [B, N]: drawn without replacement, though an earlier sibling from the same row had taken the token."""
    if trees.is_without_replacement is None or trees.draft_index is None:
        return torch.zeros_like(trees.tokens, dtype=torch.bool)

    def is_same(values: Tensor) -> Tensor:
        return values.unsqueeze(2) == values.unsqueeze(1)

    is_repeated = is_same(trees.parents) & is_same(trees.draft_index) & is_same(trees.tokens)
    return is_repeated.tril(-1).any(2) & trees.is_without_replacement
