"""The one buffer in which the batched rules compute, so that few kernels gather from all of it; see `scans.py`.

A table of rows over the vocabulary comes first:

    made | rests | drafts | targets

`made` holds draft distributions that are in no table (point masses of selected children, and what is left where
children were drawn without their earlier siblings), `rests` what every child's rejection leaves, `drafts` and `targets`
the batch's own. Single numbers follow:

    one | minus one | (1, -g) of every child | signs of its terms | sums
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.tree import TreeBatch
from treespec.tree.transfer import upload
from treespec.verification.dense.plan import Plan

NUM_TERMS = 4
"""Numbers stored per child, see `Gathers.terms`."""


class Layout(NamedTuple):
    """Numbers of rows, and where the single numbers begin."""

    num_made: int
    num_children: int
    num_drafts: int
    num_nodes: int
    size: int

    @property
    def num_rows(self) -> int:
        return self.num_made + self.num_children + self.num_drafts + self.num_nodes

    @property
    def first_draft(self) -> int:
        return self.num_made + self.num_children

    @property
    def one(self) -> int:
        return self.num_rows * self.size

    @property
    def scales(self) -> int:
        return self.one + 2

    @property
    def signs(self) -> int:
        return self.scales + 2 * self.num_children

    @property
    def sums(self) -> int:
        return self.signs + NUM_TERMS * self.num_children

    @property
    def end(self) -> int:
        return self.sums + self.num_children

    def row_of(self, numbers: Int[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """Rows of the table: below R of the distributions after nodes, else R + a child's number, of what it leaves."""
        rests = numbers - self.num_nodes + self.num_made
        return np.where(numbers < self.num_nodes, numbers + self.num_rows - self.num_nodes, rests)


class Gathers(NamedTuple):
    """Gather indices of the kernels, on the device: rows of the table, and cells, counted through the whole buffer."""

    bags: Int[Tensor, "M 2"]
    """Per child the row that it is verified against and its draft distribution."""
    starts: Int[Tensor, "M"]
    """0, 2, 4 ..., where bags begin."""
    weights: Int[Tensor, "2 M"]
    """Cells of the child's token in these two rows."""
    lines: Int[Tensor, "2 M L"]
    """Cells of P and q of the quotients q / P along the plan's lines; the first quotient is minus one, or one for
    children after the first. In several waves the head's draft probability comes last."""
    terms: Int[Tensor, "M 4"]
    """Cells: one, of which the first weight of the child's bag consists, then one, -g of the first sibling of the child
    before and the sum that it leaves, which `g = sum + (g_first - 1)` of the second weight consists of."""
    term_starts: Int[Tensor, "M 2"]
    """0, 1, 4, 5, 8 ..., where the terms of these two begin."""
    head_weights: Int[Tensor, "M"]
    """Cells of the head's token in the row before it; one where there is no head."""
    finals: Int[Tensor, "R"]
    """Rows, as the plan has them, counted from the first of `rests`."""
    singles: Int[Tensor, "R"]
    """0, 1, 2 ..., where bags of one begin."""
    copied: Int[Tensor, "_"]
    """Rows of the draft's table that children were drawn from without earlier siblings."""
    gone: Int[Tensor, "_"]
    """Cells of these siblings' tokens in the copies."""
    ones: Int[Tensor, "_"]
    """Cells of selected children's tokens in their point masses."""


class Cells(NamedTuple):
    """The buffer, and views of its parts."""

    layout: Layout
    gathers: Gathers
    draws: Float[Tensor, "R"]
    """The uniforms, float64, on the device."""
    flat: Float[Tensor, "_"]

    @property
    def table(self) -> Float[Tensor, "T V"]:
        return self.flat[: self.layout.one].view(-1, self.layout.size)

    @property
    def known(self) -> Float[Tensor, "_ V"]:
        """The table's rows but those of `made`."""
        return self.table[self.layout.num_made :]

    @property
    def rests(self) -> Float[Tensor, "M V"]:
        return self.known[: self.layout.num_children]

    @property
    def scales(self) -> Float[Tensor, "M 2"]:
        return self.flat[self.layout.scales : self.layout.signs].view(-1, 2)

    @property
    def signs(self) -> Float[Tensor, "M 4"]:
        return self.flat[self.layout.signs : self.layout.sums].view(-1, NUM_TERMS)

    @property
    def sums(self) -> Float[Tensor, "M"]:
        return self.flat[self.layout.sums :]


def fill_cells(
    trees: TreeBatch, plan: Plan, probs: Float[Tensor, "R V"], dtype: torch.dtype, draws: Float[Tensor, "R"]
) -> Cells:
    """All that is known before any child is rejected; one copy to the device brings the plan and the draws there."""
    drafts = [] if trees.draft_probs is None else [trees.draft_probs.detach().to(probs.device)]
    is_made = plan.draft_rows < 0
    is_made[plan.taken[0]] = True
    layout = Layout(int(is_made.sum()), len(plan.nodes), sum(map(len, drafts)), *probs.shape)
    arrays = _gathers(plan, layout, is_made)
    numbers, uniforms, constants = upload(
        probs.device,
        torch.from_numpy(np.concatenate([array.ravel() for array in arrays])),
        draws,
        torch.from_numpy(_constants(plan)),
    )
    parts = zip(arrays, numbers.split_with_sizes([array.size for array in arrays]), strict=True)
    gathers = Gathers._make(part.view(array.shape) for array, part in parts)
    flat = probs.new_empty(layout.end, dtype=dtype)
    known = [part.reshape(-1) for part in (*drafts, probs, constants)]
    torch.cat(known, out=flat[layout.first_draft * layout.size : layout.sums])
    cells = Cells(layout, gathers, uniforms, flat)
    if layout.num_made:
        _make_rows(cells)
    return cells


def _constants(plan: Plan) -> Float[np.ndarray, "_"]:
    """One, minus one, scales (1, -1), and the signs of terms: they make -g; of first children g, as lines hold -1."""
    scales = np.tile([1.0, -1.0], 1 + len(plan.nodes))
    signs = np.array([[1, 1, 1, -1], [1, -1, -1, 1]])[plan.is_first.astype(int)]
    return np.concatenate([scales, signs.ravel()])


def _make_rows(cells: Cells) -> None:
    """Write the distributions that are in no table: point masses, then those drawn without earlier siblings."""
    flat, layout, gathers, table = cells.flat, cells.layout, cells.gathers, cells.table
    num_ones = len(gathers.ones)
    if num_ones:
        table[:num_ones].zero_()
        flat.index_fill_(0, gathers.ones, 1)
    if len(gathers.copied):
        less = table[num_ones : layout.num_made]
        drafts = table[layout.first_draft : layout.first_draft + layout.num_drafts]
        torch.index_select(drafts, 0, gathers.copied, out=less)
        flat.index_fill_(0, gathers.gone, 0)
        less.div_(less.sum(-1, keepdim=True))


def _gathers(plan: Plan, layout: Layout, is_made: Bool[np.ndarray, "M"]) -> list[np.ndarray]:
    """The arrays of `Gathers`; `is_made`: the child was drawn from a distribution that is in no table."""
    size, numbers = layout.size, np.arange(len(plan.nodes))
    draft_rows = plan.draft_rows + layout.first_draft
    ones, less = numbers[plan.draft_rows < 0], numbers[is_made & (plan.draft_rows >= 0)]
    draft_rows[ones], draft_rows[less] = np.arange(len(ones)), np.arange(len(ones), layout.num_made)
    rows = np.stack([layout.row_of(plan.sources), draft_rows])
    weights = rows * size + plan.tokens
    lines = _line_cells(plan, layout, weights)
    terms, head_weights = np.empty((0, NUM_TERMS), np.int64), numbers[:0]
    if len(plan.ends) > 2:
        terms, head_weights = _cells_before(plan, layout)
    gone = draft_rows[plan.taken[0]] * size + plan.taken[1]
    return [
        rows.T,
        2 * numbers,
        weights,
        lines,
        terms,
        NUM_TERMS * numbers[:, None] + np.arange(2),
        head_weights,
        layout.row_of(plan.finals) - layout.num_made,
        np.arange(layout.num_nodes),
        plan.draft_rows[less],
        gone,
        weights[1, ones],
    ]


def _line_cells(plan: Plan, layout: Layout, weights: Int[np.ndarray, "2 M"]) -> Int[np.ndarray, "2 M L"]:
    """`Gathers.lines`, given `Gathers.weights`."""
    cells = np.pad(weights, ((0, 0), (0, 1)), constant_values=layout.one)
    lines = cells[:, plan.lines]
    lines[1, plan.is_first, 0] = layout.one + 1
    if len(plan.ends) <= 2:
        return lines
    heads = cells[:, plan.heads]
    heads[0] = layout.one
    return np.concatenate([lines, heads[..., None]], -1)


def _cells_before(plan: Plan, layout: Layout) -> tuple[Int[np.ndarray, "M 4"], Int[np.ndarray, "M"]]:
    """`Gathers.terms` and `head_weights`; children of the first wave have nothing before."""
    terms = np.full((len(plan.nodes), NUM_TERMS), layout.one)
    terms[:, 2] = layout.scales + 2 * plan.first_before + 1
    terms[:, 3] = layout.sums + plan.before
    head_weights = np.full(len(plan.nodes), layout.one)
    is_headed = plan.heads < len(plan.nodes)
    rows = plan.before[is_headed] + layout.num_made
    head_weights[is_headed] = rows * layout.size + plan.tokens[plan.heads[is_headed]]
    return terms, head_weights


def add_scaled(
    table: Float[Tensor, "_ _"], rows: Int[Tensor, "..."], starts: Int[Tensor, "..."], scales: Float[Tensor, "..."]
) -> Float[Tensor, "_ _"]:
    """Sums of scaled rows, one for every bag of them, given where bags begin: gathered and added by one kernel."""
    return torch.embedding_bag(table, rows.flatten(), starts.flatten(), per_sample_weights=scales.flatten())[0]
