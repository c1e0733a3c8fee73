"""Verification of a batch on the distributions' device."""

from __future__ import annotations

import torch
from torch import Tensor

from treespec.protocols import VerificationRule
from treespec.tree import TreeBatch, Verdict
from treespec.verification.dense.flags import check_flags, is_distribution, is_drafted_tree
from treespec.verification.dense.forms import has_dense_form
from treespec.verification.dense.packing import decode, pack
from treespec.verification.rows import walk_rows


def verify_dense(
    rule: VerificationRule, trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor
) -> list[Verdict]:
    """Verify every tree of a batch on the distributions' device, with one host copy where the rule has a dense form.

    Args:
        rule: one that admits the trees. A rule without a dense form is walked row by row, waiting for the device.
        trees: B trees.
        target_probs: float [B, N, V]; rows of padding hold anything.
        coins: float [B, N] in [0, 1), by the node judged.
        draws: float [B, N] in [0, 1), by the node drawn from.

    Raises:
        InvalidTreeError, LogitsError: see `decode`.
    """
    if has_dense_form(rule):
        return decode(pack(rule, trees, target_probs, coins, draws), trees)
    check_flags(
        *torch.stack([is_drafted_tree(trees, target_probs.shape[-1]), is_distribution(trees, target_probs)]).tolist()
    )
    return walk_rows(rule, trees, target_probs, coins, draws)
