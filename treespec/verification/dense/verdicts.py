"""Verdicts, validity flags and trees as one tensor, so that one host copy brings them all."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.protocols import VerificationRule
from treespec.tree import PADDING_PARENT, TreeBatch, Verdict
from treespec.verification.dense.forms import DENSE_FORMS, Ending, follow_picks
from treespec.verification.validity import check_flags, has_distributions, is_verifiable

_NUM_HEADERS = 4


def verify_dense(
    rule: VerificationRule,
    trees: TreeBatch,
    target_probs: Float[Tensor, "B N V"],
    coins: Float[Tensor, "B N"],
    draws: Float[Tensor, "B N"],
) -> list[Verdict]:
    """Verify every tree of a batch on the distributions' device, with one host copy.

    `rule` must support the trees and have a dense form. The rest as for `verify_batch`, padding's rows hold anything.
    """
    return decode(pack(rule, trees, target_probs, coins, draws), trees)


def pack(
    rule: VerificationRule,
    trees: TreeBatch,
    target_probs: Float[Tensor, "B N V"],
    coins: Float[Tensor, "B N"],
    draws: Float[Tensor, "B N"],
) -> Int[Tensor, "B columns"]:
    """Verdicts, validity flags and the trees as one tensor on the device, [B, 4 + 3 N]; never waits for the device."""
    ending = DENSE_FORMS[type(rule)](trees, target_probs, coins, draws)
    return _packed(trees, ending, target_probs.shape[-1], has_distributions(trees, target_probs))


def pack_greedy(trees: TreeBatch, scores: Float[Tensor, "B N V"]) -> Int[Tensor, "B columns"]:
    """Greedy decoding's verdicts, packed: the target walk on the highest scores."""
    is_finite = (scores.amax(-1).isfinite() | (trees.parents == PADDING_PARENT)).all()
    return _packed(trees, follow_picks(trees, scores.argmax(-1)), scores.shape[-1], is_finite)


def _packed(trees: TreeBatch, ending: Ending, vocab_size: int, has_probs: Bool[Tensor, ""]) -> Int[Tensor, "B columns"]:
    rows = torch.arange(trees.num_rows, device=trees.device)
    is_bonus = ~(trees.parents == ending.last.unsqueeze(1)).any(1)
    flags = [flag.expand(trees.num_rows) for flag in (is_verifiable(trees, vocab_size), has_probs)]
    headers = [header.long() for header in (*flags, ending.next_tokens, is_bonus)]
    is_kept = trees.ancestors[rows, ending.last].long()
    return torch.cat([torch.stack(headers, 1), is_kept, trees.tokens, trees.parents], 1)


def decode(packed: Int[Tensor, "B columns"], trees: TreeBatch) -> list[Verdict]:
    """The verdicts of what `pack` made of `trees`, by one host copy; the trees keep theirs. Raises as `check_flags`."""
    rows, size = packed.tolist(), trees.max_nodes
    check_flags(trees, *rows[0][:2])
    kept, tokens, parents = (
        [row[first : first + size] for row in rows] for first in range(_NUM_HEADERS, _NUM_HEADERS + 3 * size, size)
    )
    trees.keep_trees(tokens, parents)
    return [
        Verdict(tuple(node for node, is_kept in enumerate(flags) if is_kept), row[2], bool(row[3]))
        for row, flags in zip(rows, kept, strict=True)
    ]
