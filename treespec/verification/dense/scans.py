"""One pass over the nodes that finds every residual and probability of acceptance before any coin is compared.

The device computes what needs the vocabulary, and the host the rest. Let a node be entered with mass a (recursive
rejection: 1), W be the weights that its next child is verified against (before the first `a P`), and S the sum of
`(W - q)+`, which the next ones are, divided by `S + 1 - mass`. The device keeps rows proportional to W, and g with
`W = row / g`: then

    row' = (row - g q)+,     g' = sum(row') + h,     h' = h,     h = g - 1 before the first child,

and a child of token x is entered with mass `min(1, row[x] / (g q[x]))`. For a line of first children
these minima have a closed form, a maximum of products of `q[x] / P[x]`, so a chain costs as many operations as one
node. The number of operations grows with the ranks on a path alone.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.tree import TreeBatch
from treespec.tree.transfer import upload
from treespec.verification.dense.plan import Plan, make_plan

Uniforms = Float[Tensor, "B N"]
Probs = Float[Tensor, "B N V"]


class Scan(NamedTuple):
    """What the device finds of the M children of a batch, in the plan's order; see `outcomes`."""

    plan: Plan
    has_masses: bool
    rows: Float[Tensor, "R_M V"]
    """The distributions after all R = B * N nodes, then what every child's rejection leaves, not normalised."""
    sums: Float[Tensor, "M"]
    """Of what every child's rejection leaves."""
    weights: Float[Tensor, "M"]
    """Of the children's tokens in the rows that they are verified against."""
    drawn_probs: Float[Tensor, "M"]
    """The draft's probability of every child's token after its earlier siblings, which must not be zero."""


def scan_rejection(trees: TreeBatch, target_probs: Probs) -> Scan:
    """Recursive rejection for all nodes at once: no node's probability depends on another parent's."""
    return _scan(trees, target_probs, has_masses=False)


def scan_traversal(trees: TreeBatch, target_probs: Probs) -> Scan:
    """Traversal for all nodes at once: a node is entered with a mass that its parent and earlier siblings decide."""
    return _scan(trees, target_probs, has_masses=True)


def outcomes(
    scan: Scan, sums: Float[Tensor, "M"], weights: Float[Tensor, "M"], drawn_probs: Float[Tensor, "M"]
) -> tuple[list[float], list[int]]:
    """By `row * N + node`, from a scan's numbers on the host.

    The probability of accepting the node given that all nodes verified before it were rejected (of a traversal: the
    mass left when its children are; the root is always accepted), and the row of `scan.rows` from which the token after
    it is drawn when its children were all rejected.
    """
    plan, has_masses = scan.plan, scan.has_masses
    num_nodes = len(plan.numbers)
    masses, scales, rows = [1.0] * num_nodes, [1.0] * num_nodes, list(range(num_nodes))
    entered, is_open = [1.0] * num_nodes, [True] * num_nodes
    numbers = (array.double().tolist() for array in (sums, weights, drawn_probs))
    by_number = list(zip(*numbers, strict=True))
    parents = plan.parents.tolist()
    for node, number in enumerate(plan.numbers.tolist()):  # Parents come before children, siblings in their order.
        if number < 0:
            continue
        parent = parents[number]
        total, weight, drawn = by_number[number]
        mass, scale = masses[parent], scales[parent]
        if not is_open[parent]:  # Nothing is left below it.
            masses[node] = scales[node] = entered[node] = 0.0
            is_open[node] = False
            continue
        entered[node] = min(scale * weight / drawn, 1.0) if drawn > 0 else 0.0
        if has_masses:
            masses[node] = scales[node] = entered[node]
            is_open[node] = entered[node] > 0
        if scale * total > 0:
            left = scale * total + (1 - mass)
            masses[parent], scales[parent], rows[parent] = scale * total / left, scale / left, num_nodes + number
        else:  # In exact arithmetic nothing is left; the last row with any weight stands for the next token.
            masses[parent], is_open[parent] = 0.0, False
    return (masses if has_masses else entered), rows


def _scan(trees: TreeBatch, target_probs: Probs, has_masses: bool) -> Scan:
    plan = make_plan(trees, has_masses)
    dtype = target_probs.dtype
    if trees.draft_probs is not None:  # What the rule's `verify` would end up in.
        dtype = torch.promote_types(dtype, trees.draft_probs.dtype)
    probs = target_probs.detach().flatten(0, 1)
    num_nodes, size = probs.shape
    cells = probs.new_empty((num_nodes + len(plan.nodes)) * size + 1, dtype=dtype)
    rows = cells[:-1].view(-1, size)
    rows[:num_nodes].copy_(probs)
    index = _upload(plan, trees, rows)
    draft_probs = _draft_probs(trees, plan, rows, index)
    drawn_probs = draft_probs.gather(1, index.tokens.unsqueeze(1)).squeeze(1)
    weights = cells.take(index.cells)  # Right for first children: the other rows are still to be filled.
    is_deep = plan.lines.shape[1] > 1 or (plan.heads < len(plan.nodes)).any()
    masses = _line_masses(plan, index, weights, drawn_probs) if has_masses and is_deep else None
    sums = _fill_rests(plan, index, cells, rows, draft_probs, masses)
    if len(plan.ends) > 2:
        weights = cells.take(index.cells)
    return Scan(plan, has_masses, rows, sums, weights, drawn_probs)


class _Index(NamedTuple):
    """The plan on the device; `draft` as `_draft_arrays` gives it."""

    sources: Int[Tensor, "M"]
    tokens: Int[Tensor, "M"]
    cells: Int[Tensor, "M"]
    """Of every child's token in its source row."""
    lines: Int[Tensor, "M L"]
    heads: Int[Tensor, "M"]
    head_cells: Int[Tensor, "M"]
    """Of the head's token in the row before it; the last cell for those without a head."""
    before: Int[Tensor, "M"]
    """Counted within the wave before."""
    lost: Int[Tensor, "M"]
    """Whose sum is to be subtracted; M for those with a head."""
    is_first: Bool[Tensor, "M"]
    draft: Sequence[Tensor]


def _upload(plan: Plan, trees: TreeBatch, rows: Float[Tensor, "R_M V"]) -> _Index:
    num_nodes, num_children, size = len(plan.numbers), len(plan.nodes), rows.shape[1]
    is_headed = plan.heads < num_children
    head_tokens = np.append(plan.tokens, 0)[plan.heads]
    starts = np.repeat([0, *plan.ends[:-2]][: len(plan.ends) - 1], np.diff(plan.ends))
    arrays = (
        plan.sources,
        plan.tokens,
        plan.sources * size + plan.tokens,
        plan.lines,
        plan.heads,
        np.where(is_headed, (num_nodes + plan.before) * size + head_tokens, (num_nodes + num_children) * size),
        plan.before - starts,
        np.where(is_headed, num_children, plan.before),
        plan.sources < num_nodes,
        *_draft_arrays(trees, plan),
    )
    first = upload(rows.device, *map(torch.from_numpy, arrays))
    return _Index._make([*first[:9], first[9:]])


class _Masses(NamedTuple):
    """One over the masses that the parents of first children are entered with, given their heads' masses.

    `max(floors, factors / (head's weight / g))`, where the head's weight and g are those before the head.
    """

    floors: Float[Tensor, "M"]
    factors: Float[Tensor, "M"]


def _line_masses(plan: Plan, index: _Index, weights: Float[Tensor, "M"], drawn_probs: Float[Tensor, "M"]) -> _Masses:
    """The closed form of `1 / min(1, a_head p_1, p_2 ...)`: the largest product of the last quotients, or one."""
    one = weights.new_ones(1)
    products = torch.cat([drawn_probs / weights, one])[index.lines].cumprod(1)
    floors, factors = products.amax(1), products[:, -1]
    if len(plan.ends) > 2:  # Children after the first have no line of their own: their scale goes on.
        floors, factors = floors * index.is_first, factors * torch.cat([drawn_probs, one])[index.heads]
    return _Masses(floors, factors)


def _fill_rests(
    plan: Plan,
    index: _Index,
    cells: Float[Tensor, "_"],
    rows: Float[Tensor, "R_M V"],
    draft_probs: Float[Tensor, "M V"],
    masses: _Masses | None,
) -> Float[Tensor, "M"]:
    """Write the rows of all children, wave by wave; returns their sums."""
    sums = rows.new_ones(len(plan.nodes) + 1)
    rests = rows[len(plan.numbers) :]
    cells[-1:].fill_(1)
    scale: Tensor | None = None
    spare: Tensor | None = None  # h; None is zero, of nodes entered with mass one.
    previous = slice(0, 0)
    for wave in (slice(*ends) for ends in pairwise(plan.ends)):
        if wave.start:
            total = sums[previous] if spare is None else sums[previous] + spare
            scale = total[index.before[wave]]
            if masses is not None and (plan.heads[wave] < len(plan.nodes)).any():
                quotients = masses.factors[wave] / cells.take(index.head_cells[wave])
                scale = torch.maximum(masses.floors[wave], scale * quotients)
                spare = scale - sums[index.lost[wave]]
            elif spare is not None:
                spare = spare[index.before[wave]]
        elif masses is not None:
            scale = masses.floors[wave]
            spare = scale - 1 if wave.stop < len(plan.nodes) else None
        row, probs = rows.index_select(0, index.sources[wave]), draft_probs[wave]
        rest = row - probs if scale is None else torch.addcmul(row, probs, scale.unsqueeze(1), value=-1)
        torch.clamp(rest, min=0, out=rests[wave])
        torch.sum(rests[wave], -1, out=sums[wave])
        previous = wave
    return sums[:-1]


def _draft_arrays(trees: TreeBatch, plan: Plan) -> list[np.ndarray]:
    """Where the draft's distributions lie and what is missing in them, for `_draft_probs`; nothing if none was drawn.

    Rows of the table int64 [M]; children, and tokens that they were drawn without, int64 each; whether a child was
    selected, and whether it was drawn without any token, bool [M].
    """
    if trees.draft_probs is None or plan.is_selected.all():
        return []
    is_less = np.isin(np.arange(len(plan.nodes)), plan.taken[0])
    return [np.maximum(plan.draft_rows, 0), *plan.taken, plan.is_selected, is_less]


def _draft_probs(trees: TreeBatch, plan: Plan, like: Float[Tensor, "_ V"], index: _Index) -> Float[Tensor, "M V"]:
    """What every child was drawn from, as `TokenTree.draft_probs_of` gives it; one-hot where selected."""
    tokens = index.tokens.unsqueeze(1)
    if trees.draft_probs is None or not index.draft:
        return like.new_zeros(len(tokens), like.shape[1]).scatter_(1, tokens, 1.0)
    rows, children, gone, is_selected, is_less = index.draft
    probs = trees.draft_probs.detach().to(like.device)[rows].to(like.dtype)
    if len(children):
        probs[children, gone] = 0.0
        probs = probs / torch.where(is_less.unsqueeze(1), probs.sum(-1, keepdim=True), 1.0)
    if plan.is_selected.any():
        point_masses = torch.zeros_like(probs).scatter_(1, tokens, 1.0)
        probs = torch.where(is_selected.unsqueeze(1), point_masses, probs)
    return probs
