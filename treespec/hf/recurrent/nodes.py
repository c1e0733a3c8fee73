"""Where the nodes of a pass are in their trees, and the paths of a commit, in the forms that recurrences read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from treespec.tree import ancestor_mask, pad_rows
from treespec.tree.transfer import upload

Level = tuple[Int[Tensor, " M"], Int[Tensor, " M"], Int[Tensor, " M"]]
"""Nodes of a depth: rows, ids, ids of their parents (-1: the committed tokens)."""


@dataclass(frozen=True)
class TreeNodes:
    """The N pending nodes of every row, the last F of which a pass scores.

    Attributes:
        parents: on the host, parents before children; -1: the node follows the committed tokens, -2: padding.
        device: where the pass begins; layers elsewhere copy what they read.
    """

    parents: Int[Tensor, "B N"]
    num_new: int
    device: torch.device
    _windows: dict[int, Int[Tensor, "B F width"]] = field(default_factory=dict)

    @property
    def num_old(self) -> int:
        """Nodes that earlier passes have scored since the last commit."""
        return self.parents.shape[1] - self.num_new

    @cached_property
    def ancestors(self) -> Bool[Tensor, "B N N"]:
        """Whether node j is node i itself or an ancestor of it, at (b, i, j)."""
        return upload(self.device, ancestor_mask(self.parents))[0]

    @cached_property
    def levels(self) -> list[Level]:
        """The pending nodes of every depth."""
        return self._levels(0)

    @cached_property
    def new_levels(self) -> list[Level]:
        """The new nodes of every depth."""
        return self._levels(self.num_old)

    def _levels(self, start: int) -> list[Level]:
        depths = ancestor_mask(self.parents).sum(-1)
        depths[:, :start] = 0
        found = []
        for depth in depths.unique().tolist():
            row, node = (depths == depth).nonzero(as_tuple=True)
            if depth:
                level = upload(self.device, row, node, self.parents[row, node].clamp(min=-1))
                found.append((level[0], level[1], level[2]))
        return found

    def windows(self, width: int) -> Int[Tensor, "B F width"]:
        """The new nodes, last, and their nearest ancestors; -1: the last committed token, -2: the one before."""
        if width not in self._windows:
            num_rows, num_nodes = self.parents.shape
            column = torch.arange(self.num_old, num_nodes, device="cpu").expand(num_rows, -1)
            columns = [column]
            for _ in range(width - 1):
                above = self.parents.gather(1, column.clamp(min=0)).clamp(min=-1)  # -2 may not be among the held.
                column = torch.where(column >= 0, above, column - 1)
                columns.insert(0, column)
            self._windows[width] = upload(self.device, torch.stack(columns, 2))[0]
        return self._windows[width]


@dataclass(frozen=True)
class Paths:
    """A path of every row from the root down, filled up with node 0.

    Attributes:
        is_node: False for filling.
        lengths: on the host.
    """

    nodes: Int[Tensor, "B L"]
    is_node: Bool[Tensor, "B L"]
    lengths: list[int]

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]], device: torch.device) -> Paths:
        lengths = [len(path) for path in paths]
        nodes = torch.tensor(pad_rows(paths, 0), dtype=torch.int64, device="cpu").reshape(len(paths), -1)
        is_node = torch.arange(nodes.shape[1], device="cpu") < torch.tensor(lengths, device="cpu").unsqueeze(1)
        nodes, is_node = upload(device, nodes, is_node)
        return cls(nodes, is_node, lengths)

    def to(self, device: torch.device) -> Paths:
        return Paths(self.nodes.to(device), self.is_node.to(device), self.lengths)


def joined(
    old: Sequence[Shaped[Tensor, "B ..."]], new: Sequence[Shaped[Tensor, "B ..."]], num_old: int, axis: int
) -> list[Shaped[Tensor, "B ..."]]:
    """Tensors of all pending nodes along an axis: the first `num_old` entries of `old`, then the new ones."""
    return [torch.cat([before.narrow(axis, 0, num_old), part], axis) for before, part in zip(old, new, strict=True)]


def along(states: Shaped[Tensor, "B ..."], index: Int[Tensor, "B w"], axis: int) -> Shaped[Tensor, "B ..."]:
    """The entries `index` of every row along an axis, a copy."""
    shape, sizes = [1] * states.ndim, list(states.shape)
    shape[0], shape[axis] = index.shape
    sizes[axis] = index.shape[1]
    return states.gather(axis, index.to(states.device).reshape(shape).expand(sizes))
