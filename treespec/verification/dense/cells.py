"""The one buffer in which the batched rules compute, so that few kernels gather from all of it; see `scans.py`.

A table of rows over the vocabulary comes first:

    made | rests | drafts | targets

`made` holds draft distributions that are in no table (point masses of selected children, and what is left where
children were drawn without their earlier siblings), `rests` what every child's rejection leaves, `drafts` and `targets`
the batch's own. Single numbers follow:

    one | minus one | (1, -g) of every child | quotients | sums | -h
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.tree import TreeBatch
from treespec.tree.transfer import upload
from treespec.verification.dense.plan import Plan


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
    def quotients(self) -> int:
        return self.one + 2 + 2 * self.num_children

    @property
    def sums(self) -> int:
        return self.quotients + self.num_children

    @property
    def spares(self) -> int:
        return self.sums + self.num_children

    def row_of(self, numbers: Int[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """Rows of the table: below R of the distributions after nodes, else R + a child's number, of what it leaves."""
        rests = numbers - self.num_nodes + self.num_made
        return np.where(numbers < self.num_nodes, numbers + self.num_rows - self.num_nodes, rests)


class Gathers(NamedTuple):
    """What the kernels gather, on the device: rows of the table, and cells, counted through the whole buffer."""

    bags: Int[Tensor, "M 2"]
    """Per child the row that it is verified against and its draft distribution."""
    starts: Int[Tensor, "M"]
    """0, 2, 4 ..., where bags begin."""
    weights: Int[Tensor, "2 M"]
    """Cells of the child's token in these two rows."""
    lines: Int[Tensor, "M L"]
    """Cells: minus one, then the quotients of the plan's lines; in several waves last the head's draft probability."""
    before: Int[Tensor, "4 M"]
    """Cells of the sum before, of -h before, of the head's token in the row before it (or one), and of what is lost."""
    is_first: Int[Tensor, "M"]
    """One for first children, else zero."""
    finals: Int[Tensor, "R"]
    """Rows, as the plan has them."""
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
    def rests(self) -> Float[Tensor, "M V"]:
        return self.table[self.layout.num_made : self.layout.first_draft]

    @property
    def scales(self) -> Float[Tensor, "M 2"]:
        return self.flat[self.layout.one + 2 : self.layout.quotients].view(-1, 2)

    @property
    def quotients(self) -> Float[Tensor, "M"]:
        return self.flat[self.layout.quotients : self.layout.sums]

    @property
    def sums(self) -> Float[Tensor, "M"]:
        return self.flat[self.layout.sums : self.layout.spares]

    @property
    def spares(self) -> Float[Tensor, "M"]:
        return self.flat[self.layout.spares :]


def fill_cells(
    trees: TreeBatch, plan: Plan, probs: Float[Tensor, "R V"], dtype: torch.dtype, draws: Float[Tensor, "R"]
) -> Cells:
    """All that is known before any child is rejected; one copy to the device brings the plan and the draws there."""
    drafts = [] if trees.draft_probs is None else [trees.draft_probs.detach().to(probs.device)]
    is_made = plan.draft_rows < 0
    is_made[plan.taken[0]] = True
    layout = Layout(int(is_made.sum()), len(plan.nodes), sum(map(len, drafts)), *probs.shape)
    arrays = _gathers(plan, layout, is_made)
    signs = np.ones(2 + 2 * len(plan.nodes))
    signs[1::2] = -1
    numbers, uniforms, signs_there = upload(
        probs.device,
        torch.from_numpy(np.concatenate([array.ravel() for array in arrays])),
        draws,
        torch.from_numpy(signs),
    )
    parts = zip(arrays, numbers.split_with_sizes([array.size for array in arrays]), strict=True)
    gathers = Gathers._make(part.view(array.shape) for array, part in parts)
    flat = probs.new_empty(layout.spares + len(plan.nodes), dtype=dtype)
    known = [part.reshape(-1) for part in (*drafts, probs, signs_there)]
    torch.cat(known, out=flat[layout.first_draft * layout.size : layout.quotients])
    cells = Cells(layout, gathers, uniforms, flat)
    if layout.num_made:
        _make_rows(cells)
    return cells


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
    size, num_children, numbers = layout.size, len(plan.nodes), np.arange(len(plan.nodes))
    draft_rows = plan.draft_rows + layout.first_draft
    ones, less = numbers[plan.draft_rows < 0], numbers[is_made & (plan.draft_rows >= 0)]
    draft_rows[ones], draft_rows[less] = np.arange(len(ones)), np.arange(len(ones), layout.num_made)
    rows = np.stack([layout.row_of(plan.sources), draft_rows])
    weights = rows * size + plan.tokens
    lines = layout.quotients + plan.lines
    lines[plan.lines == num_children] = layout.one
    lines[:, 0] = layout.one + 1
    before = np.empty((4, 0), np.int64)
    if len(plan.ends) > 2:
        is_headed, head_cells = plan.heads < num_children, np.append(weights[1], layout.one)[plan.heads]
        lines = np.concatenate([lines, head_cells[:, None]], 1)
        before = _cells_before(plan, layout, is_headed)
    gone = draft_rows[plan.taken[0]] * size + plan.taken[1]
    return [
        rows.T,
        2 * numbers,
        weights,
        lines,
        before,
        plan.sources < layout.num_nodes,
        layout.row_of(plan.finals),
        plan.draft_rows[less],
        gone,
        weights[1, ones],
    ]


def _cells_before(plan: Plan, layout: Layout, is_headed: Bool[np.ndarray, "M"]) -> Int[np.ndarray, "4 M"]:
    """`Gathers.before`; children of the first wave have nothing before."""
    before = np.full((4, len(plan.nodes)), layout.one)
    before[0], before[1] = plan.before + layout.sums, plan.before + layout.spares
    before[2, is_headed] = (plan.before[is_headed] + layout.num_made) * layout.size + plan.tokens[plan.heads[is_headed]]
    has_lost = (plan.before >= 0) & ~is_headed
    before[3, has_lost] = before[0, has_lost]
    return before
