"""Verdicts, validity flags and trees as one tensor, so that one host copy brings them all, and the flags' errors."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.checks import are_distributions
from treespec.errors import InvalidTreeError, LogitsError
from treespec.protocols import VerificationRule
from treespec.tree import PADDING_PARENT, TreeBatch, Verdict
from treespec.verification.dense.forms import DENSE_FORMS, Ending, follow_picks
from treespec.verification.dense.scans import Probs, Uniforms

_NUM_HEADERS = 4


def verify_dense(
    rule: VerificationRule, trees: TreeBatch, target_probs: Probs, coins: Uniforms, draws: Uniforms
) -> list[Verdict]:
    """`verify_batch` with one host copy; `rule` must have a dense form, and padding's rows may hold anything."""
    return decode(pack(rule, trees, target_probs, coins, draws), trees)


def pack(
    rule: VerificationRule, trees: TreeBatch, target_probs: Probs, coins: Uniforms, draws: Uniforms
) -> Int[Tensor, "B columns"]:
    """Verdicts, validity flags and the trees as one tensor on the device, [B, 4 + 3 N]; never waits for the device."""
    ending = DENSE_FORMS[type(rule)](trees, target_probs, coins, draws)
    has_distributions = (are_distributions(target_probs) | (trees.parents == PADDING_PARENT)).all()
    return _packed(trees, ending, target_probs.shape[-1], has_distributions)


def pack_greedy(trees: TreeBatch, scores: Probs) -> Int[Tensor, "B columns"]:
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


def is_verifiable(trees: TreeBatch, vocab_size: int) -> Bool[Tensor, ""]:
    """Whether the trees are drafted trees and every drafted token is in the vocabulary."""
    is_inside = (trees.tokens >= 0) & (trees.tokens < vocab_size)
    return trees.is_valid & (is_inside | (trees.parents < 0)).all()


def check_flags(trees: TreeBatch, is_verifiable: int | bool, has_distributions: int | bool) -> None:
    """Raise LogitsError or InvalidTreeError for flags that have come to the host and are false."""
    if not has_distributions:
        raise LogitsError(
            "a target distribution holds NaN or infinity, or does not sum to one: check the logits, the model's "
            "weights and dtype, and the logits processors"
        )
    if is_verifiable:
        return
    if trees.draft_probs is not None and bool(trees.draft_probs.isnan().any()):
        raise LogitsError(
            "the drafter's distributions hold NaN: check the draft model's weights and the logits processors"
        )
    raise InvalidTreeError(
        "the batch holds an invalid tree: a child before its parent, padding before a node, a draft distribution that "
        "does not sum to one, a drawn token of probability zero, or a token outside the target's vocabulary "
        "(TokenTree names the mistake when the tree is built row by row)"
    )
