"""Drafted trees between two steps: in depth-first order, in vLLM's lists of draft tokens, and back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treespec.tree import PADDING_PARENT, POINT_MASS, ROOT_PARENT, TreeBatch

NO_TOKEN = -1
"""What vLLM puts where a list of tokens has ended."""


class Draft(NamedTuple):
    """One request's tree: a row of a batch in depth-first order, and its nodes' tokens, the root's first."""

    trees: TreeBatch
    row: int
    tokens: list[int]


def depth_first(trees: TreeBatch) -> TreeBatch:
    """The same trees with their nodes in depth-first order; siblings keep theirs, padding stays last."""
    parents, ancestors = trees.parents.numpy(), trees.ancestors.numpy()
    num_nodes = parents.shape[1]
    sizes = ancestors.sum(1)  # The size of every node's subtree, itself included.
    are_siblings = (parents[:, :, None] == parents[:, None, :]) & (parents[:, :, None] >= 0)
    earlier = np.tri(num_nodes, k=-1, dtype=bool) & are_siblings
    skipped = (earlier * sizes[:, None, :]).sum(-1)  # The nodes of earlier siblings' subtrees.
    position = (ancestors * (1 + skipped[:, None, :])).sum(-1) - 1
    is_padding = parents == PADDING_PARENT
    position = np.where(is_padding, np.arange(num_nodes), position)
    order = np.argsort(position, axis=1, kind="stable")
    rows = np.arange(len(parents))[:, None]
    moved = np.where(parents >= 0, position[rows, np.maximum(parents, 0)], parents)
    names = ("tokens", "draft_index", "is_without_replacement", "values")
    arrays = {name: getattr(trees, name) for name in names if getattr(trees, name) is not None}
    taken = {name: torch.from_numpy(array.numpy()[rows, order]) for name, array in arrays.items()}
    return replace(trees, **taken, parents=torch.from_numpy(moved[rows, order]))


def as_drafts(trees: TreeBatch) -> list[Draft]:
    """The rows of a batch in depth-first order."""
    sizes = trees.num_nodes.tolist()
    return [
        Draft(trees, row, tokens[:size])
        for row, (tokens, size) in enumerate(zip(trees.tokens.tolist(), sizes, strict=True))
    ]


def first_chains(trees: TreeBatch, rows: Sequence[bool]) -> TreeBatch:
    """The trees with the chosen rows, in depth-first order, cut to the chain of first children."""
    is_first = (trees.parents == torch.arange(trees.max_nodes, device="cpu") - 1).cumprod(1).bool()
    chosen = torch.tensor(rows, device="cpu").unsqueeze(1)
    return trees.keep_nodes((trees.parents != PADDING_PARENT) & (is_first | ~chosen))


def scheduled_trees(
    drafts: Sequence[Draft | None], roots: Sequence[int], scheduled: Sequence[Sequence[int]]
) -> TreeBatch:
    """The trees that one step verifies, depth first.

    What vLLM scheduled of a tree is its beginning, which is a tree. Tokens that are not the beginning of a request's
    draft (a grammar has cut them) are a chain, up to the first `NO_TOKEN`.

    Args:
        drafts: per request its last draft, if there is one.
        roots: the requests' last tokens.
        scheduled: the draft tokens that follow them.
    """
    chosen = [_scheduled(*row) for row in zip(drafts, roots, scheduled, strict=True)]
    first = next((draft.trees for draft, *_ in chosen if draft is not None), None)
    if first is not None and all(draft is not None and draft.trees is first for draft, *_ in chosen):
        rows = [draft.row for draft, *_ in chosen if draft is not None]
        return _beginnings(first.select_rows(rows), [size for _, size, _ in chosen])
    return _stack(chosen)


def _scheduled(draft: Draft | None, root: int, tokens: Sequence[int]) -> tuple[Draft | None, int, list[int]]:
    """The draft, or None for a chain; the number of nodes; their tokens."""
    nodes = [root, *tokens]
    if draft is not None and draft.tokens[: len(nodes)] == nodes:
        return draft, len(nodes), nodes
    if NO_TOKEN in nodes:
        nodes = nodes[: nodes.index(NO_TOKEN)]
    return None, len(nodes), nodes


def _beginnings(trees: TreeBatch, sizes: Sequence[int]) -> TreeBatch:
    """The first nodes of every row."""
    if trees.num_nodes.tolist() == list(sizes):
        return trees
    return trees.keep_nodes(
        torch.arange(trees.max_nodes, device="cpu") < torch.tensor(sizes, device="cpu").unsqueeze(1)
    )


def _stack(chosen: Sequence[tuple[Draft | None, int, list[int]]]) -> TreeBatch:
    """Rows of several batches, and chains."""
    width, offset = max(size for _, size, _ in chosen), 0
    tokens = torch.zeros(len(chosen), width, dtype=torch.int64, device="cpu")
    parents = torch.full((len(chosen), width), PADDING_PARENT, device="cpu")
    index, flags = torch.full_like(parents, POINT_MASS), torch.zeros(parents.shape, dtype=torch.bool, device="cpu")
    tables: dict[int, tuple[int, Tensor]] = {}
    is_fixed = True
    for row, (draft, size, nodes) in enumerate(chosen):
        tokens[row, :size] = torch.tensor(nodes, device="cpu")
        parents[row, :size] = torch.arange(ROOT_PARENT, size - 1, device="cpu")
        if draft is None:
            continue
        trees = draft.trees
        is_fixed &= trees.is_width_fixed
        parents[row, :size] = trees.parents[draft.row, :size]
        if trees.draft_probs is None or trees.draft_index is None:
            continue
        if id(trees) not in tables:
            tables[id(trees)] = offset, trees.draft_probs
            offset += len(trees.draft_probs)
        own = trees.draft_index[draft.row, :size]
        index[row, :size] = torch.where(own >= 0, own + tables[id(trees)][0], own)
        if trees.is_without_replacement is not None:
            flags[row, :size] = trees.is_without_replacement[draft.row, :size]
    if not tables:
        return TreeBatch(tokens, parents, is_width_fixed=is_fixed)
    probs = torch.cat([table for _, table in tables.values()])
    return TreeBatch(tokens, parents, probs, index, flags, is_fixed)
