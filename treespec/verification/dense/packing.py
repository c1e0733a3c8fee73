"""Verdicts, validity flags and trees as one tensor, so that one host copy brings them all."""

from __future__ import annotations

import torch
from torch import Tensor

from treespec.protocols import VerificationRule
from treespec.tree import PADDING_PARENT, TreeBatch, Verdict
from treespec.verification.dense.flags import check_flags, is_distribution, is_drafted_tree
from treespec.verification.dense.forms import DENSE_FORMS, Judgement, walk_picks

_NUM_HEADERS = 4


def pack(rule: VerificationRule, trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor) -> Tensor:
    """Verdicts, validity flags and the trees as one tensor on the device, int64 [B, 4 + 3 N]; `decode` reads it.

    Arguments as for `verify_dense`. Never waits for the device.
    """
    judgement = DENSE_FORMS[type(rule)](trees, target_probs, coins, draws)
    return _packed(
        trees, judgement, is_drafted_tree(trees, target_probs.shape[-1]), is_distribution(trees, target_probs)
    )


def pack_greedy(trees: TreeBatch, scores: Tensor) -> Tensor:
    """Greedy decoding's verdicts, packed: the target walk on the argmax of scores float [B, N, V]."""
    is_node = trees.parents != PADDING_PARENT
    top = scores.amax(-1)
    is_finite = (top.isfinite() | ~is_node).all()
    judgement = walk_picks(trees, scores.argmax(-1))
    return _packed(trees, judgement, is_drafted_tree(trees, scores.shape[-1]), is_finite)


def _packed(trees: TreeBatch, judgement: Judgement, is_tree: Tensor, is_distribution: Tensor) -> Tensor:
    rows = torch.arange(trees.num_rows, device=trees.device)
    is_bonus = ~(trees.parents == judgement.last.unsqueeze(1)).any(1)
    headers = [is_tree.expand(trees.num_rows), is_distribution.expand(trees.num_rows), judgement.next_tokens, is_bonus]
    is_kept = trees.ancestors[rows, judgement.last].long()
    return torch.cat([torch.stack([h.long() for h in headers], 1), is_kept, trees.tokens, trees.parents], 1)


def decode(packed: Tensor, trees: TreeBatch | None = None) -> list[Verdict]:
    """One host copy of what `pack` made; the batch that it was made of need not be read again by those who come after.

    Raises:
        InvalidTreeError: a batch whose values are not those of drafted trees.
        LogitsError: a target distribution that is not finite, is negative or does not sum to one.
    """
    rows = packed.tolist()
    check_flags(*rows[0][:2])
    size = (len(rows[0]) - _NUM_HEADERS) // 3
    kept, tokens, parents = ([row[first : first + size] for row in rows] for first in _starts(size))
    if trees is not None:
        trees.keep_trees(tokens, parents)
    return [
        Verdict(tuple(node for node, is_kept in enumerate(flags) if is_kept), row[2], bool(row[3]))
        for row, flags in zip(rows, kept, strict=True)
    ]


def _starts(size: int) -> range:
    """Where the three columns of a packed row start."""
    return range(_NUM_HEADERS, _NUM_HEADERS + 3 * size, size)
