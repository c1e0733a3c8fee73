"""The dense form of each rule: where the kept path ends, once all coins are compared at once.

Verdicts, validity flags and trees travel as one tensor, so that one host copy brings them all.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.checks import are_distributions
from treespec.errors import InvalidTreeError, LogitsError
from treespec.protocols import VerificationRule
from treespec.sampling import inverse_cdf
from treespec.tree import PADDING_PARENT, ROOT_PARENT, TreeBatch, Verdict
from treespec.verification.block import BlockVerification
from treespec.verification.dense.scans import Probs, Scan, Uniforms, at, scan_rejection, scan_traversal
from treespec.verification.recursive import RecursiveRejection, TokenVerification
from treespec.verification.target_walk import TargetWalk
from treespec.verification.traversal import Traversal

_NUM_HEADERS = 4


class Ending(NamedTuple):
    """`last` int64 [B], the node at which the kept path ends, and `next_tokens` int64 [B]."""

    last: Tensor
    next_tokens: Tensor


def dense_rejection(trees: TreeBatch, target_probs: Probs, coins: Uniforms, draws: Uniforms) -> Ending:
    scan = scan_rejection(trees, target_probs)
    is_chosen = _is_first_sibling(trees, coins.double() < scan.accept_probs.double())
    return _draw_next(scan, _end_of_chosen(trees, is_chosen), draws)


def dense_traversal(trees: TreeBatch, target_probs: Probs, coins: Uniforms, draws: Uniforms) -> Ending:
    scan = scan_traversal(trees, target_probs)
    is_accepted = (coins.double() < scan.accept_probs.double()) & (trees.parents != PADDING_PARENT)
    is_accepted = is_accepted | (trees.parents == ROOT_PARENT)
    order = torch.where(is_accepted, _post_order(trees), trees.max_nodes)
    return _draw_next(scan, order.argmin(1), draws)


def dense_target_walk(trees: TreeBatch, target_probs: Probs, coins: Uniforms, draws: Uniforms) -> Ending:
    return follow_picks(trees, inverse_cdf(target_probs, draws))


def follow_picks(trees: TreeBatch, picks: Int[Tensor, "B N"]) -> Ending:
    """The target walk, given the token drawn at every node."""
    is_match = picks.gather(1, trees.parents.clamp(0, trees.max_nodes - 1)) == trees.tokens
    last = _end_of_chosen(trees, _is_first_sibling(trees, is_match))
    return Ending(last, at(picks, last))


def _draw_next(scan: Scan, last: Int[Tensor, " B"], draws: Uniforms) -> Ending:
    rows = torch.arange(len(last), device=last.device)
    return Ending(last, inverse_cdf(scan.next_probs[rows, last], at(draws, last)))


def _is_first_sibling(trees: TreeBatch, is_accepted: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Accepted children before which no sibling was accepted; True at the root."""
    has_earlier = (_earlier_siblings(trees) & is_accepted.unsqueeze(1)).any(-1)
    return (is_accepted & ~has_earlier & (trees.parents >= 0)) | (trees.parents == ROOT_PARENT)


def _end_of_chosen(trees: TreeBatch, is_chosen: Bool[Tensor, "B N"]) -> Int[Tensor, " B"]:
    """Where the path of chosen nodes from the root ends."""
    is_cut = (trees.ancestors & ~is_chosen.unsqueeze(1)).any(-1)
    is_kept = ~is_cut & (trees.parents != PADDING_PARENT)
    # The kept nodes are one path, and parents stand before children.
    return (is_kept * torch.arange(trees.max_nodes, device=trees.device)).amax(1)


def _post_order(trees: TreeBatch) -> Int[Tensor, "B N"]:
    """How many nodes a traversal from the leaves up visits before this one."""
    sizes = trees.ancestors.sum(1)
    before = (_earlier_siblings(trees) * sizes.unsqueeze(1)).sum(-1)
    return (trees.ancestors * before.unsqueeze(1)).sum(-1) + sizes - 1


def _earlier_siblings(trees: TreeBatch) -> Bool[Tensor, "B N N"]:
    """Whether node j stands before node i among the children of one node: entry [b, i, j]."""
    parents = trees.parents
    is_sibling = (parents.unsqueeze(2) == parents.unsqueeze(1)) & (parents >= 0).unsqueeze(2)
    return is_sibling.tril(-1)


_DenseForm = Callable[[TreeBatch, Tensor, Tensor, Tensor], Ending]
DENSE_FORMS: dict[type, _DenseForm] = {
    TargetWalk: dense_target_walk,
    TokenVerification: dense_rejection,
    RecursiveRejection: dense_rejection,
    BlockVerification: dense_traversal,  # On chains the two are one rule, coin for coin.
    Traversal: dense_traversal,
}


def has_dense_form(rule: VerificationRule) -> bool:
    """Whether whole batches of this rule take one host copy."""
    return type(rule) in DENSE_FORMS


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
