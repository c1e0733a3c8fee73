"""The dense form of each rule: where the kept path ends, once all coins are compared at once."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.protocols import VerificationRule
from treespec.sampling import inverse_cdf
from treespec.tree import PADDING_PARENT, ROOT_PARENT, TreeBatch
from treespec.verification.block import BlockVerification
from treespec.verification.dense.scans import Probs, Scan, Uniforms, at, scan_rejection, scan_traversal
from treespec.verification.recursive import RecursiveRejection, TokenVerification
from treespec.verification.target_walk import TargetWalk
from treespec.verification.traversal import Traversal


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
