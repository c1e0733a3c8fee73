"""Drafted trees between two steps: in depth-first order, in vLLM's lists of draft tokens, and back."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from treespec.tree import PADDING_PARENT, TokenTree, TreeBatch

NO_TOKEN = -1
"""Filler in vLLM's lists of tokens after their end."""


class Draft(NamedTuple):
    """One request's tree: a row of a batch in depth-first order, its nodes' tokens, the root's first, and how many
    scratch blocks are kept for it."""

    trees: TreeBatch
    row: int
    tokens: list[int]
    num_blocks: int = 0


def depth_first(trees: TreeBatch) -> TreeBatch:
    """The same trees with their nodes in depth-first order; siblings keep theirs, padding stays last."""
    parents, ancestors = trees.parents.numpy(), trees.ancestors.numpy()
    num_nodes = parents.shape[1]
    sizes = ancestors.sum(1)  # The size of every node's subtree, itself included.
    are_siblings = (parents[:, :, None] == parents[:, None, :]) & (parents[:, :, None] >= 0)
    earlier = np.tri(num_nodes, k=-1, dtype=bool) & are_siblings
    skipped = (earlier * sizes[:, None, :]).sum(-1)  # The nodes of earlier siblings' subtrees.
    position = (ancestors * (1 + skipped[:, None, :])).sum(-1) - 1
    order = np.argsort(np.where(parents == PADDING_PARENT, num_nodes, position), axis=1, kind="stable")
    return trees.select_nodes([nodes[:n] for nodes, n in zip(order.tolist(), trees.num_nodes.tolist(), strict=True)])


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
    nodes = [[root, *tokens] for root, tokens in zip(roots, scheduled, strict=True)]
    pairs = list(zip(drafts, nodes, strict=True))
    known = [draft if draft and draft.tokens[: len(own)] == own else None for draft, own in pairs]
    found = [draft for draft in known if draft]
    if len(found) == len(known) and all(draft.trees is found[0].trees for draft in found):
        return first_nodes(found[0].trees.select_rows([draft.row for draft in found]), list(map(len, nodes)))
    return TreeBatch.from_trees([_tree(*pair) for pair in zip(known, nodes, strict=True)])


def first_nodes(trees: TreeBatch, sizes: Sequence[int] | int) -> TreeBatch:
    """The first nodes of every row in depth-first order, which are trees."""
    most = torch.as_tensor(sizes, device="cpu").reshape(-1, 1)
    keep = (torch.arange(trees.max_nodes, device="cpu") < most) & (trees.parents != PADDING_PARENT)
    return trees if bool((trees.num_nodes == keep.sum(1)).all()) else trees.keep_nodes(keep)


def _tree(draft: Draft | None, nodes: list[int]) -> TokenTree:
    if draft is None:
        return TokenTree.chain(nodes[: nodes.index(NO_TOKEN)] if NO_TOKEN in nodes else nodes)
    return first_nodes(draft.trees.select_rows([draft.row]), len(nodes)).trees[0]
