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

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.tree import TreeBatch
from treespec.verification.dense.cells import Cells, add_scaled, fill_cells
from treespec.verification.dense.plan import Plan, make_plan
from treespec.verification.flags import Probs, Uniforms


class Scan(NamedTuple):
    """Results of the device for the M children of a batch of R = B * N nodes, in the plan's order; see `outcomes`."""

    plan: Plan
    has_masses: bool
    cells: Cells
    numbers: Float[Tensor, "2 M"]
    """The weights of the children's tokens in the rows that they are verified against, and the draft's probabilities
    of these tokens after their earlier siblings, which must not be zero."""
    totals: Float[Tensor, "M+D+R"]
    """Sums of what every child's rejection leaves, of the draft's distributions and of the target's."""
    least: Float[Tensor, "D+R"]
    """The least entries of the draft's distributions and of the target's."""


def run_scan(trees: TreeBatch, target_probs: Probs, draws: Uniforms, has_masses: bool) -> Scan:
    """All nodes of a batch at once.

    `has_masses`: a node is entered with a mass that its parent and earlier siblings decide, as in traversal; in
    recursive rejection no node's probability depends on another parent's.
    """
    plan = make_plan(trees, has_masses)
    dtype = target_probs.dtype
    if trees.draft_probs is not None:  # The dtype that the rule's `verify` promotes to.
        dtype = torch.promote_types(dtype, trees.draft_probs.dtype)
    cells = fill_cells(trees, plan, target_probs.detach().flatten(0, 1), dtype, draws.double().flatten())
    layout, has_waves = cells.layout, len(plan.ends) > 2
    is_deep = has_masses and (plan.lines.shape[1] > 1 or bool((plan.heads < len(plan.nodes)).any()))
    factors = _set_masses(cells, has_waves) if is_deep else None
    _fill_rests(plan, cells, factors)
    numbers = cells.flat.take(cells.gathers.weights)
    # In float64 for the sake of the tokens that are drawn after all nodes.
    totals = cells.known.sum(-1, dtype=torch.float64)
    return Scan(plan, has_masses, cells, numbers, totals, cells.known[layout.num_children :].amin(-1))


def outcomes(
    scan: Scan,
    sums: Float[Tensor, "M"],
    weights: Float[Tensor, "M"],
    drawn_probs: Float[Tensor, "M"],
    has_probs: Sequence[bool],
) -> tuple[list[float], list[int]]:
    """By `row * N + node`, from a scan's numbers on the host and whether the target has a distribution after the node.

    The probability of accepting the node given that all nodes verified before it were rejected (of a traversal: the
    mass left when its children are; the root is always accepted), and from what the token after it is drawn when its
    children were all rejected: below R the distribution after a node, else R + a child's number, what that leaves.
    """
    plan, has_masses = scan.plan, scan.has_masses
    num_nodes = len(plan.numbers)
    masses, scales, rows = [1.0] * num_nodes, [1.0] * num_nodes, list(range(num_nodes))
    entered, is_open = [1.0] * num_nodes, list(has_probs)
    numbers = (array.double().tolist() for array in (sums, weights, drawn_probs))
    by_number = list(zip(*numbers, strict=True))
    parents = plan.parents.tolist()
    for node, number in enumerate(plan.numbers.tolist()):  # Parents come before children, siblings in their order.
        if number < 0:
            continue
        parent = parents[number]
        total, weight, drawn = by_number[number]
        mass, scale = masses[parent], scales[parent]
        if not is_open[parent]:  # Nothing is left below it, or it is a dead end.
            masses[node] = scales[node] = entered[node] = 0.0
            is_open[node] = False
            continue
        entered[node] = min(scale * weight / drawn, 1.0) if drawn > 0 else 0.0
        if has_masses:
            masses[node] = scales[node] = entered[node]
            is_open[node] = is_open[node] and entered[node] > 0  # Below mass zero all numbers are NaN: q / 0.
        if scale * total > 0:
            left = scale * total + (1 - mass)
            masses[parent], scales[parent], rows[parent] = scale * total / left, scale / left, num_nodes + number
        else:  # In exact arithmetic nothing is left; the last row with any weight stands for the next token.
            masses[parent], is_open[parent] = 0.0, False
    return (masses if has_masses else entered), rows


def _set_masses(cells: Cells, has_waves: bool) -> Float[Tensor, "M"]:
    """Minus one over the masses that the parents of first children are entered with, given their heads' masses.

    The closed form of `-1 / min(1, a_head p_1, p_2 ...)`: the least product of minus one and the last quotients q / P,
    or, where there is a head, that product with all quotients of the line and the head's `g q / weight`. Sets the
    scales to the first one, and returns the products of the second, without the head's g and weight. Both are one for
    children after the first, which have no line of their own.
    """
    below, above = cells.flat.take(cells.gathers.lines).unbind()
    products = (above / below).cumprod(1)
    torch.amin(products[:, :-1] if has_waves else products, 1, out=cells.scales[:, 1])
    return products[:, -1]


def _fill_rests(plan: Plan, cells: Cells, factors: Float[Tensor, "M"] | None) -> None:
    """Write what all children leave, `(row - g q)+`, wave by wave."""
    rests, gathers = cells.rests, cells.gathers
    for wave in (slice(*ends) for ends in pairwise(plan.ends)):
        scales = _scales_after(plan, cells, factors, wave) if wave.start else cells.scales[wave]
        rows = add_scaled(cells.table, gathers.bags[wave], gathers.starts[: len(scales)], scales)
        torch.clamp(rows, min=0, out=rests[wave])
        if wave.stop < len(plan.nodes):  # The last wave's sums are read by no other.
            torch.sum(rests[wave], -1, out=cells.sums[wave])


def _scales_after(plan: Plan, cells: Cells, factors: Float[Tensor, "M"] | None, wave: slice) -> Float[Tensor, "w 2"]:
    """(1, -g) of a wave after the first."""
    gathers = cells.gathers
    starts = gathers.term_starts[: wave.stop - wave.start]
    sums = add_scaled(cells.flat.view(-1, 1), gathers.terms[wave], starts, cells.signs[wave]).view(-1, 2)
    if not plan.is_first[wave].any():
        return sums
    assert factors is not None  # Only the first wave has none.
    scales = cells.scales[wave]
    weights = cells.flat.take(gathers.head_weights[wave])
    torch.minimum(scales[:, 1], sums[:, 1] * factors[wave] / weights, out=scales[:, 1])
    return scales
