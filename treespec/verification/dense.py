"""The lossless rules over whole batches, for accelerators: every law at once, and one host copy per step.

Each form computes what its `walk` computes, in the same order, so that the two agree coin for coin. The probability
with which a node is accepted, given that everything judged before it was rejected, depends on no coin: one pass over
the nodes finds them all, then all coins are compared at once.

Axis letters: B rows, N nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from treespec.errors import InvalidTreeError, LogitsError
from treespec.protocols import VerificationRule
from treespec.sampling import inverse_cdf
from treespec.tree import PADDING_PARENT, POINT_MASS, ROOT_PARENT, TreeBatch, Verdict
from treespec.verification.block import BlockVerification
from treespec.verification.chooser import GivenChooser
from treespec.verification.recursive import RecursiveRejection
from treespec.verification.target_walk import TargetWalk
from treespec.verification.token import TokenVerification
from treespec.verification.traversal import Traversal

LAW_TOLERANCE = 1e-3
_NUM_HEADERS = 4


class Judgement(NamedTuple):
    """`last` int64 [B]: the node at which the kept path ends. `next_tokens` int64 [B]."""

    last: Tensor
    next_tokens: Tensor


class Scan(NamedTuple):
    """What one pass over the nodes finds, before any coin is looked at.

    `probs` float [B, N]: the probability of accepting a node given that everything judged before it was rejected.
    `laws` float [B, N, V]: the law of the token after a node where its children were all rejected.
    """

    probs: Tensor
    laws: Tensor


def verify_dense(
    rule: VerificationRule, trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor
) -> list[Verdict]:
    """Verify every tree of a batch on the laws' device, with one host copy where the rule has a dense form.

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
    _check_flags(*torch.stack([is_drafted_tree(trees, target_probs.shape[-1]), is_law(trees, target_probs)]).tolist())
    return walk_rows(rule, trees, target_probs, coins, draws)


def walk_rows(
    rule: VerificationRule, trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor
) -> list[Verdict]:
    """The rule's own walk, row by row and unchecked: for CPUs, and the reference of the dense forms."""
    coin_rows, draw_rows = coins.tolist(), draws.tolist()
    return [
        rule.walk(tree, target_probs[b].__getitem__, GivenChooser(coin_rows[b], draw_rows[b]))
        for b, tree in enumerate(trees.trees)
    ]


def has_dense_form(rule: VerificationRule) -> bool:
    return type(rule) in _DENSE_FORMS


def pack(rule: VerificationRule, trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor) -> Tensor:
    """Verdicts, validity flags and the trees as one tensor on the device, int64 [B, 4 + 3 N]; `decode` reads it.

    Arguments as for `verify_dense`. Never waits for the device.
    """
    judgement = _DENSE_FORMS[type(rule)](trees, target_probs, coins, draws)
    return _packed(trees, judgement, is_drafted_tree(trees, target_probs.shape[-1]), is_law(trees, target_probs))


def pack_greedy(trees: TreeBatch, scores: Tensor) -> Tensor:
    """Greedy decoding's verdicts, packed: the target walk on the argmax of scores float [B, N, V]."""
    is_node = trees.parents != PADDING_PARENT
    top = scores.amax(-1)
    is_finite = (top.isfinite() | ~is_node).all()
    judgement = _walk_picks(trees, scores.argmax(-1))
    return _packed(trees, judgement, is_drafted_tree(trees, scores.shape[-1]), is_finite)


def decode(packed: Tensor, trees: TreeBatch | None = None) -> list[Verdict]:
    """One host copy of what `pack` made; the batch that it was made of need not be read again by those who come after.

    Raises:
        InvalidTreeError: a batch whose values are not those of drafted trees.
        LogitsError: a target law that is not finite, is negative or does not sum to one.
    """
    rows = packed.tolist()
    _check_flags(*rows[0][:2])
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


def is_drafted_tree(trees: TreeBatch, vocab_size: int) -> Tensor:
    """bool []: the trees are valid and every drafted token is one of the vocabulary's."""
    is_inside = (trees.tokens >= 0) & (trees.tokens < vocab_size)
    return trees.is_valid & (is_inside | (trees.parents < 0)).all()


def is_law(trees: TreeBatch, target_probs: Tensor) -> Tensor:
    """bool []: every node's target law is finite, not negative, and sums to one within LAW_TOLERANCE."""
    # NaN fails every comparison, so these ask for the good and never for the bad.
    is_good = (target_probs.amin(-1) >= 0) & ((target_probs.sum(-1) - 1).abs() <= LAW_TOLERANCE)
    return (is_good | (trees.parents == PADDING_PARENT)).all()


def scan_rejection(trees: TreeBatch, target_probs: Tensor) -> Scan:
    """Recursive rejection for all nodes at once: no node's probability depends on another parent's."""
    laws, probs = _start(trees, target_probs)
    rows = torch.arange(trees.num_rows, device=laws.device)
    for node in range(1, trees.max_nodes):
        parent = trees.parents[:, node].clamp(0, node - 1)
        law, token = laws[rows, parent], _token(trees, node, laws.shape[-1])
        draft_law = _proposal_law(trees, node, laws.shape[-1], laws.dtype)
        probs[:, node] = (_at(law, token) / _at(draft_law, token)).clamp(max=1)
        rest = (law - draft_law).clamp(min=0)
        total = rest.sum(-1, keepdim=True)
        laws[rows, parent] = torch.where(_is_child(trees, node) & (total > 0), rest / total, law)
    return Scan(probs, laws)


def scan_traversal(trees: TreeBatch, target_probs: Tensor) -> Scan:
    """Traversal for all nodes at once: a node is entered with a mass that its parent and earlier siblings decide.

    A node's column of `probs` first holds the mass that it is entered with, and last the one that is left when its
    children are all rejected: the probability of accepting the node itself. The root is always accepted.
    """
    laws, probs = _start(trees, target_probs)
    probs[:, 0] = 1
    rows = torch.arange(trees.num_rows, device=laws.device)
    for node in range(1, trees.max_nodes):
        parent = trees.parents[:, node].clamp(0, node - 1)
        law, token = laws[rows, parent], _token(trees, node, laws.shape[-1])
        draft_law = _proposal_law(trees, node, laws.shape[-1], laws.dtype)
        mass = probs[rows, parent].unsqueeze(-1)
        weights = mass * law
        probs[:, node] = (_at(weights, token) / _at(draft_law, token)).clamp(max=1)
        rest = (weights - draft_law).clamp(min=0)
        total = rest.sum(-1, keepdim=True)
        is_child, has_rest = _is_child(trees, node), total > 0
        laws[rows, parent] = torch.where(is_child & has_rest, rest / total, law)
        # Mass zero closes the node: later siblings are entered with nothing, and only a root is accepted.
        left = torch.where(has_rest, total / (total + (1 - mass)), torch.zeros_like(mass))
        probs[rows, parent] = torch.where(is_child, left, mass).squeeze(-1)
    probs[:, 0] = 1
    return Scan(probs, laws)


def _judge_by_rejection(trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor) -> Judgement:
    scan = scan_rejection(trees, target_probs)
    is_chosen = _is_first_sibling(trees, coins.double() < scan.probs.double())
    return _emit(scan, _end_of_chosen(trees, is_chosen), draws)


def _judge_by_traversal(trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor) -> Judgement:
    scan = scan_traversal(trees, target_probs)
    is_accepted = (coins.double() < scan.probs.double()) & (trees.parents != PADDING_PARENT)
    is_accepted = is_accepted | (trees.parents == ROOT_PARENT)
    order = torch.where(is_accepted, _post_order(trees), trees.max_nodes)
    return _emit(scan, order.argmin(1), draws)


def _judge_by_walk(trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor) -> Judgement:
    return _walk_picks(trees, inverse_cdf(target_probs, draws))


def _walk_picks(trees: TreeBatch, picks: Tensor) -> Judgement:
    """The target walk, given the token drawn at every node: int64 [B, N]."""
    is_match = picks.gather(1, trees.parents.clamp(0, trees.max_nodes - 1)) == trees.tokens
    last = _end_of_chosen(trees, _is_first_sibling(trees, is_match))
    return Judgement(last, _at(picks, last))


_DenseForm = Callable[[TreeBatch, Tensor, Tensor, Tensor], Judgement]
_DENSE_FORMS: dict[type, _DenseForm] = {
    TargetWalk: _judge_by_walk,
    TokenVerification: _judge_by_rejection,
    RecursiveRejection: _judge_by_rejection,
    BlockVerification: _judge_by_traversal,  # On chains the two are one rule, coin for coin.
    Traversal: _judge_by_traversal,
}


def _start(trees: TreeBatch, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Working copies: laws [B, N, V] and empty probabilities [B, N], in the dtype that the walk would end up in."""
    dtype = target_probs.dtype
    if trees.laws is not None:
        dtype = torch.promote_types(dtype, trees.laws.dtype)
    laws = target_probs.to(dtype, copy=True)
    return laws, laws.new_zeros(trees.tokens.shape)


def _at(values: Tensor, index: Tensor) -> Tensor:
    """`values[b, index[b]]`: values [B, M] and index int64 [B] to [B]."""
    return values.gather(1, index.unsqueeze(1)).squeeze(1)


def _token(trees: TreeBatch, node: int, vocab_size: int) -> Tensor:
    """int64 [B], forced into the vocabulary: `is_drafted_tree` reports tokens outside of it."""
    return trees.tokens[:, node].clamp(0, vocab_size - 1)


def _is_child(trees: TreeBatch, node: int) -> Tensor:
    """bool [B, 1]: False on padding."""
    return (trees.parents[:, node] >= 0).unsqueeze(1)


def _earlier_siblings(trees: TreeBatch) -> Tensor:
    """bool [B, N, N]: whether j stands before i among the children of one node."""
    parents = trees.parents
    is_sibling = (parents.unsqueeze(2) == parents.unsqueeze(1)) & (parents >= 0).unsqueeze(2)
    return is_sibling.tril(-1)


def _proposal_law(trees: TreeBatch, node: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
    """The law that the node's token was drawn from, as `TokenTree.law` gives it; one-hot where selected: [B, V]."""
    # torch's one_hot reads its values on the host.
    point_mass = (torch.arange(vocab_size, device=trees.device) == _token(trees, node, vocab_size)[:, None]).to(dtype)
    if trees.laws is None or trees.law_index is None:
        return point_mass
    row = trees.law_index[:, node]
    law = trees.laws[row.clamp(0, trees.laws.shape[0] - 1)]
    if trees.is_without_replacement is not None:
        law = _without_earlier(trees, node, law)
    return torch.where((row == POINT_MASS).unsqueeze(1), point_mass, law.to(dtype))


def _without_earlier(trees: TreeBatch, node: int, law: Tensor) -> Tensor:
    """The law [B, V] less the tokens of earlier siblings from the same row, where drawn without replacement."""
    row, flags, parents = trees.law_index, trees.is_without_replacement, trees.parents
    assert row is not None, "laws come with their index"
    assert flags is not None, "asked for only where there are flags"
    is_taken = (parents[:, :node] == parents[:, node, None]) & (row[:, :node] == row[:, node, None])
    is_taken = is_taken & flags[:, node, None]
    tokens = trees.tokens[:, :node].clamp(0, law.shape[1] - 1)
    # amin and not a plain scatter: a token may stand on an earlier node that is no sibling, too.
    kept = torch.ones_like(law).scatter_reduce(1, tokens, (~is_taken).to(law.dtype), "amin")
    rest = law * kept
    return torch.where(is_taken.any(1, keepdim=True), rest / rest.sum(-1, keepdim=True), law)


def _is_first_sibling(trees: TreeBatch, is_accepted: Tensor) -> Tensor:
    """bool [B, N]: accepted children before which no sibling was accepted; True at the root."""
    has_earlier = (_earlier_siblings(trees) & is_accepted.unsqueeze(1)).any(-1)
    return (is_accepted & ~has_earlier & (trees.parents >= 0)) | (trees.parents == ROOT_PARENT)


def _end_of_chosen(trees: TreeBatch, is_chosen: Tensor) -> Tensor:
    """int64 [B]: where the path of chosen nodes from the root ends."""
    is_cut = (trees.ancestors & ~is_chosen.unsqueeze(1)).any(-1)
    is_kept = ~is_cut & (trees.parents != PADDING_PARENT)
    # The kept nodes are one path, and parents stand before children.
    return (is_kept * torch.arange(trees.max_nodes, device=trees.device)).amax(1)


def _post_order(trees: TreeBatch) -> Tensor:
    """int64 [B, N]: how many nodes a traversal from the leaves up judges before this one."""
    sizes = trees.ancestors.sum(1)
    before = (_earlier_siblings(trees) * sizes.unsqueeze(1)).sum(-1)
    return (trees.ancestors * before.unsqueeze(1)).sum(-1) + sizes - 1


def _emit(scan: Scan, last: Tensor, draws: Tensor) -> Judgement:
    rows = torch.arange(len(last), device=last.device)
    return Judgement(last, inverse_cdf(scan.laws[rows, last], _at(draws, last)))


def _packed(trees: TreeBatch, judgement: Judgement, is_tree: Tensor, is_law: Tensor) -> Tensor:
    rows = torch.arange(trees.num_rows, device=trees.device)
    is_bonus = ~(trees.parents == judgement.last.unsqueeze(1)).any(1)
    headers = [is_tree.expand(trees.num_rows), is_law.expand(trees.num_rows), judgement.next_tokens, is_bonus]
    is_kept = trees.ancestors[rows, judgement.last].long()
    return torch.cat([torch.stack([h.long() for h in headers], 1), is_kept, trees.tokens, trees.parents], 1)


def _check_flags(is_tree: int | bool, is_law: int | bool) -> None:
    if not is_law:
        raise LogitsError(
            "a target law holds NaN or infinity, or does not sum to one: check the logits, the model's weights and "
            "dtype, and the logits processors"
        )
    if not is_tree:
        raise InvalidTreeError(
            "the batch holds an invalid tree: a child before its parent, a law that does not sum to one, a drawn token "
            "of probability zero, or a token outside the target's vocabulary"
        )
