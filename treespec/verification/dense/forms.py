"""The dense form of each rule: where the kept path ends, given the probabilities of acceptance of all nodes.

The device is read once, and in large batches, except by a walk after the target, once more for the next tokens.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.checks import are_totals
from treespec.protocols import VerificationRule
from treespec.sampling import draw_on_host, find_tokens
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.tree.checks import SUM_TOLERANCE, is_well_formed
from treespec.tree.transfer import download, upload
from treespec.verification.dead_ends import before_end
from treespec.verification.dense.cells import add_scaled
from treespec.verification.dense.scans import Scan, outcomes, run_scan
from treespec.verification.flags import Probs, Uniforms, check_flags, has_known_tokens, may_be_verified
from treespec.verification.recursive import RecursiveRejection, TokenVerification
from treespec.verification.target_walk import TargetWalk
from treespec.verification.traversal import BlockVerification, Traversal

NO_TOKEN = -1
DRAWN_AHEAD = 1 << 24
"""Up to this many numbers, drawing after all nodes takes a device less time than waiting for the one to draw after."""


class DenseForm(NamedTuple):
    """`has_masses`: see `run_scan`; `last_node` reads a row's acceptances and coins [N] on the host."""

    has_masses: bool
    last_node: Callable[[TokenTree, Sequence[float], Sequence[float]], int]


def end_of_rejection(tree: TokenTree, accept_probs: Sequence[float], coins: Sequence[float]) -> int:
    """The end of the path of first accepted siblings."""
    node = 0
    while True:
        child = next((c for c in tree.children(node) if coins[c] < accept_probs[c]), None)
        if child is None:
            return node
        node = child


def end_of_traversal(tree: TokenTree, accept_probs: Sequence[float], coins: Sequence[float]) -> int:
    """The first accepted node of a walk in which every subtree comes before its own root."""
    order, stack = [], [0]  # No recursive closure: a cycle would keep the tree's distributions on the device.
    while stack:
        order.append(stack.pop())
        stack += tree.children(order[-1])
    return next(node for node in reversed(order) if node == 0 or coins[node] < accept_probs[node])


DENSE_FORMS: dict[type, DenseForm] = {
    TokenVerification: DenseForm(False, end_of_rejection),
    RecursiveRejection: DenseForm(False, end_of_rejection),
    BlockVerification: DenseForm(True, end_of_traversal),
    Traversal: DenseForm(True, end_of_traversal),
}


def has_dense_form(rule: VerificationRule) -> bool:
    """Whether whole batches of this rule are verified at once."""
    return type(rule) is TargetWalk or type(rule) in DENSE_FORMS


def verify_dense(
    rule: VerificationRule, trees: TreeBatch, target_probs: Probs, coins: Uniforms, draws: Uniforms
) -> list[Verdict]:
    """Verify every tree of a batch on the distributions' device.

    `rule` must support the trees and have a dense form; coins and draws are on the host. The rest as for
    `verify_batch`; padding's rows hold anything.
    """
    if type(rule) is TargetWalk:
        check_flags(trees, _is_walkable(trees, target_probs.shape[-1]), True)
        sums = target_probs.sum(-1, dtype=torch.float64)
        picks, least, total = draw_on_host(target_probs, draws, target_probs.amin(-1), sums, sums=sums)
        return _follow(trees, picks, may_be_verified(trees, least, total), are_totals(least, total))
    check_flags(trees, is_well_formed(trees) and has_known_tokens(trees, target_probs.shape[-1]), True)
    form = DENSE_FORMS[type(rule)]
    scan = run_scan(trees, target_probs, draws, form.has_masses)
    (sums, weights, drawn_probs), has_probs, ahead = _read_checked(trees, scan)
    accept_probs, next_rows = outcomes(scan, sums, weights, drawn_probs, has_probs)
    size = trees.max_nodes
    starts = range(0, len(accept_probs), size)
    rows = zip(trees.trees, (accept_probs[i : i + size] for i in starts), coins.tolist(), strict=True)
    last = [form.last_node(*row) for row in rows]
    ends = [i + node for i, node in zip(starts, last, strict=True)]
    tokens = _next_tokens(scan, ends, next_rows, ahead, draws)
    return [
        Verdict(tree.path_to(node), token, is_bonus=not tree.children(node))
        if has_probs[end]
        else before_end(tree, tree.path_to(node))
        for tree, node, token, end in zip(trees.trees, last, tokens, ends, strict=True)
    ]


def verify_scores(trees: TreeBatch, scores: Probs) -> list[Verdict]:
    """Greedy decoding: the walk that takes the highest score at every node."""
    check_flags(trees, _is_walkable(trees, scores.shape[-1]), True)
    picks, top = download(scores.argmax(-1), scores.amax(-1))
    has_probs = top.isfinite()
    return _follow(trees, picks, has_probs[:, :1], has_probs)


def _follow(
    trees: TreeBatch, picks: Int[Tensor, "B N"], is_good: Bool[Tensor, "B _"], has_probs: Bool[Tensor, "B N"]
) -> list[Verdict]:
    """The walk after `picks`, which does not enter nodes without a distribution; raises where not all `is_good`."""
    check_flags(trees, True, bool(is_good.all()))
    # No pick is such a node then.
    return follow_picks(trees, picks.tolist(), trees.tokens.masked_fill(~has_probs, NO_TOKEN))


def follow_picks(
    trees: TreeBatch, picks: Sequence[Sequence[int]], tokens: Int[Tensor, "B N"] | None = None
) -> list[Verdict]:
    """The target walk of every row, given the token that the target picked after every node, [B][N]."""
    rows = zip((trees.tokens if tokens is None else tokens).tolist(), trees.parents.tolist(), picks, strict=True)
    return [_walk(*row) for row in rows]


def _walk(tokens: Sequence[int], parents: Sequence[int], picks: Sequence[int]) -> Verdict:
    children: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(parents, tokens, strict=True)):
        children.setdefault(key, node)  # The first of siblings with the same token.
    path = [0]
    while (child := children.get((path[-1], picks[path[-1]]))) is not None:
        path.append(child)
    return Verdict(tuple(path), picks[path[-1]], is_bonus=path[-1] not in parents)


def _read_checked(trees: TreeBatch, scan: Scan) -> tuple[list[Float[Tensor, "M"]], list[bool], list[int] | None]:
    """The scan's numbers on the host, which of the R nodes have a distribution, and the token after every node if what
    it leaves in the end is drawn from.

    The tokens are -1 where none was found, and None where drawing them all is not worth it: they are drawn later then;
    raises as `check_flags` for what comes with them.
    """
    cells, layout = scan.cells, scan.cells.layout
    drawn = []
    if cells.flat.device.type != "cpu" and layout.num_nodes * layout.size <= DRAWN_AHEAD:
        finals, singles = cells.gathers.finals, cells.gathers.singles
        goals = add_scaled(scan.totals.view(-1, 1), finals, singles, cells.draws)
        drawn = find_tokens(cells.known[finals], goals.view(-1))
    numbers, totals, least, *drawn = download(scan.numbers, scan.totals, scan.least, *drawn)
    num_drafts, totals_known = layout.num_drafts, totals[layout.num_children :]
    is_draft = are_totals(least[:num_drafts], totals_known[:num_drafts], SUM_TOLERANCE)
    target = least[num_drafts:], totals_known[num_drafts:]
    is_target = may_be_verified(trees, *(part.view(trees.tokens.shape) for part in target))
    check_flags(trees, bool((numbers[1] > 0).all()) and bool(is_draft.all()), bool(is_target.all()))
    ahead = torch.where(drawn[1] > 0, drawn[0], NO_TOKEN).tolist() if drawn else None
    return [totals[: layout.num_children], *numbers], are_totals(*target).tolist(), ahead


def _next_tokens(
    scan: Scan, last: Sequence[int], next_rows: Sequence[int], ahead: Sequence[int] | None, draws: Uniforms
) -> list[int]:
    """The token after every tree's last accepted node, counted through the batch; `ahead` as read."""
    found = [-1] * len(last)
    if ahead is not None:
        finals = scan.plan.finals
        found = [ahead[node] if next_rows[node] == finals[node] else -1 for node in last]
    missing = [row for row, token in enumerate(found) if token < 0]
    if missing:
        nodes = [last[row] for row in missing]
        rows = scan.cells.layout.row_of(np.array([next_rows[node] for node in nodes]))
        (index,) = upload(scan.cells.flat.device, torch.from_numpy(rows))
        drawn = draw_on_host(scan.cells.table[index], draws.flatten()[nodes])[0].tolist()
        for row, token in zip(missing, drawn, strict=True):
            found[row] = token
    return found


def _is_walkable(trees: TreeBatch, vocab_size: int) -> bool:
    """Whether trees are valid for a walk, which reads no draft distributions: on a device it does not wait for them."""
    is_away = trees.draft_probs is not None and trees.draft_probs.device.type != "cpu"
    return has_known_tokens(trees, vocab_size) and (is_well_formed(trees) if is_away else trees.is_valid)
