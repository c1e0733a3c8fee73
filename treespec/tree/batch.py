"""`TreeBatch`: the trees of all rows, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.errors import InvalidTreeError
from treespec.tree.arrays import (
    PADDING_PARENT,
    POINT_MASS,
    ROOT_PARENT,
    TreeArrays,
    ancestor_mask,
    check_shapes,
    pad_rows,
)
from treespec.tree.checks import is_drafted
from treespec.tree.host_tree import HostTree
from treespec.tree.token_tree import TokenTree
from treespec.tree.transfer import download

_HOST_ARRAYS = ("tokens", "parents", "draft_index", "is_without_replacement", "values")


@dataclass(frozen=True, eq=False)
class TreeBatch(TreeArrays):
    """B trees side by side: what the engine runs. Padding nodes stand last, parent -2.

    Everything but the distributions is on the host; what comes on a device is copied to it.

    Args:
        tokens: int64 [B, N]; these four as those of `TokenTree`, one row per tree.
        parents: int64 [B, N].
        draft_index: int64 [B, N] or None.
        is_without_replacement: bool [B, N] or None.
        draft_probs: float [R, V], shared by the rows, on the device that drafted, or None.
        is_width_fixed: see `TokenTree`.
        values: float [B, N], the drafter's estimates that a node's whole path is accepted (the root's is 1), or None.
            Rules never look at them.

    Raises `InvalidTreeError`: wrong shapes or dtypes; values are checked by `is_valid`.
    """

    values: Float[Tensor, "B N"] | None = None

    def __post_init__(self) -> None:
        check_shapes(self, num_axes=2)
        shape = list(self.tokens.shape)
        values = self.values
        if values is not None and (list(values.shape) != shape or not values.is_floating_point()):
            raise InvalidTreeError(f"values must be float of tokens' shape {shape}, got {list(values.shape)}")
        names = [name for name in _HOST_ARRAYS if getattr(self, name) is not None]
        if any(getattr(self, name).device.type != "cpu" for name in names):
            for name, copy in zip(names, download(*(getattr(self, name) for name in names)), strict=True):
                object.__setattr__(self, name, copy)

    @classmethod
    def from_trees(cls, trees: Sequence[TokenTree]) -> TreeBatch:
        """Pad trees of different sizes to one batch; their distribution tables are stacked, a shared one once.

        Raises `InvalidTreeError`: not a list of trees, or distributions over different vocabularies.
        """
        if not isinstance(trees, Sequence) or not trees or not all(isinstance(tree, TokenTree) for tree in trees):
            raise InvalidTreeError(f"a batch needs a list of at least one TokenTree, got {trees!r}")
        width = max(tree.num_nodes for tree in trees)
        tables = {id(tree.draft_probs): tree.draft_probs for tree in trees}
        probs = [table for table in tables.values() if table is not None]
        if len({table.shape[1] for table in probs}) > 1:
            raise InvalidTreeError(f"trees of one batch must share V, got {[list(table.shape) for table in probs]}")
        offsets = dict(zip(map(id, probs), accumulate(map(len, probs), initial=0), strict=False))
        draft_rows = []
        for tree in trees:
            row = torch.tensor(tree.draft_index_list, device="cpu")
            draft_rows.append(torch.where(row >= 0, row + offsets.get(id(tree.draft_probs), 0), row))
        flags = [torch.tensor(tree.is_without_replacement_list, device="cpu") for tree in trees]

        def pad(rows: list[Tensor], value: int) -> Tensor:
            return torch.stack([torch.nn.functional.pad(r.cpu(), (0, width - len(r)), value=value) for r in rows])

        return cls(
            tokens=pad([t.tokens for t in trees], 0),
            parents=pad([t.parents for t in trees], PADDING_PARENT),
            draft_probs=torch.cat(probs) if probs else None,
            draft_index=pad(draft_rows, POINT_MASS) if probs else None,
            is_without_replacement=pad(flags, 0) if probs else None,
            is_width_fixed=all(t.is_width_fixed for t in trees),
        )

    @classmethod
    def from_host_trees(cls, trees: Sequence[HostTree]) -> TreeBatch:
        """Pad trees of selected children, all with values, to one batch."""
        return cls(
            tokens=torch.tensor(pad_rows([tree.tokens for tree in trees], 0), device="cpu"),
            parents=torch.tensor(pad_rows([tree.parents for tree in trees], PADDING_PARENT), device="cpu"),
            values=torch.tensor(pad_rows([tree.values for tree in trees], 0.0), dtype=torch.float32, device="cpu"),
        )

    def host_trees(self) -> list[HostTree]:
        """The rows as lists, without padding; their distributions are left out."""
        tokens, parents = self.tokens.tolist(), self.parents.tolist()
        values = [[]] * self.num_rows if self.values is None else self.values.tolist()
        sizes = [len(row) - row.count(PADDING_PARENT) for row in parents]
        return [HostTree(t[:n], p[:n], v[:n]) for t, p, v, n in zip(tokens, parents, values, sizes, strict=True)]

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def max_nodes(self) -> int:
        """N: the width of the arrays, padding included."""
        return self.tokens.shape[1]

    @cached_property
    def num_nodes(self) -> Int[Tensor, "B"]:
        """Nodes per row, padding not counted."""
        return (self.parents != PADDING_PARENT).sum(1)

    @cached_property
    def depths(self) -> Int[Tensor, "B N"]:
        """0 for the root and for padding."""
        return (self.ancestors.sum(-1) - 1).clamp(min=0)

    @cached_property
    def ancestors(self) -> Bool[Tensor, "B N N"]:
        """See `ancestor_mask`."""
        return ancestor_mask(self.parents)

    @cached_property
    def trees(self) -> list[TokenTree]:
        """The rows as single trees, not checked (see `is_valid`)."""
        rows = zip(range(self.num_rows), self.tokens.tolist(), self.parents.tolist(), strict=True)
        return [self._row(*row) for row in rows]

    def _row(self, row: int, tokens: list[int], parents: list[int]) -> TokenTree:
        tree = object.__new__(TokenTree)
        size = sum(parent != PADDING_PARENT for parent in parents)
        vars(tree).update(token_list=tokens[:size], parent_list=parents[:size])
        cut = {name: getattr(self, name) for name in ("tokens", "parents", "draft_index", "is_without_replacement")}
        for name, value in cut.items():
            object.__setattr__(tree, name, None if value is None else value[row, :size])
        object.__setattr__(tree, "draft_probs", self.draft_probs)
        object.__setattr__(tree, "is_width_fixed", self.is_width_fixed)
        return tree

    @cached_property
    def sampling_schemes(self) -> frozenset[str]:
        return frozenset().union(*(tree.sampling_schemes for tree in self.trees))

    @property
    def is_chain(self) -> bool:
        return all(tree.is_chain for tree in self.trees)

    @cached_property
    def is_valid(self) -> bool:
        """Whether the trees can have been drafted, see `is_drafted`; waits for the device of the distributions."""
        return is_drafted(self)

    def limit_depth(self, max_depths: Sequence[int]) -> TreeBatch:
        """Drop nodes of row b deeper than `max_depths[b]`, but no root. Lossless: depth depends on no drawn token."""
        limit = torch.tensor(max_depths, device="cpu").clamp(min=0).unsqueeze(1)
        return self.keep_nodes((self.parents != PADDING_PARENT) & (self.depths <= limit))

    def best_chains(self) -> TreeBatch:
        """One path per row, for targets that verify chains only: see `TokenTree.best_chain`."""
        keep = torch.zeros_like(self.tokens, dtype=torch.bool)
        values = None if self.values is None else self.values.tolist()
        for row, tree in enumerate(self.trees):
            keep[row, list(tree.best_chain(values[row] if values else None))] = True
        return self.keep_nodes(keep)

    def select_rows(self, rows: Sequence[int]) -> TreeBatch:
        """The trees of these rows, in this order; the table of distributions stays whole."""
        if list(rows) == list(range(self.num_rows)):
            return self
        arrays = {name: getattr(self, name) for name in _HOST_ARRAYS if getattr(self, name) is not None}
        return replace(self, **{name: array[list(rows)] for name, array in arrays.items()})

    def keep_nodes(self, keep: Bool[Tensor, "B N"]) -> TreeBatch:
        """The batch cut down to `keep`, which must hold every kept node's ancestors; the order stays."""
        is_kept = keep.numpy()
        counts = is_kept.sum(1, keepdims=True)
        width = max(int(counts.max()), 1)
        kept_first = np.argsort(~is_kept, axis=1, kind="stable")[:, :width]
        return self._take(np.where(np.arange(width) < counts, kept_first, PADDING_PARENT))

    def select_nodes(self, nodes: Sequence[Sequence[int]]) -> TreeBatch:
        """The trees of row b's nodes `nodes[b]`, in this order: the root first, parents before children."""
        return self._take(np.array(pad_rows(nodes, PADDING_PARENT)))

    def _take(self, nodes: Int[np.ndarray, "B M"]) -> TreeBatch:
        """The trees of these nodes, -2 for padding, with the parents renumbered."""
        names = [name for name in _HOST_ARRAYS if getattr(self, name) is not None]
        num_rows, width = self.parents.shape
        rows = np.arange(num_rows)[:, None]
        taken = np.maximum(nodes, 0) + width * rows
        cut = {name: getattr(self, name).numpy().take(taken) for name in names}
        new_ids = np.zeros((num_rows, width + 2), np.int64)
        new_ids[rows, nodes] = np.arange(nodes.shape[1])
        new_ids[:, width:] = PADDING_PARENT, ROOT_PARENT  # Found by -2 and -1, which are left unchanged.
        cut["parents"] = np.where(nodes >= 0, new_ids[rows, cut["parents"]], PADDING_PARENT)
        return replace(self, **{name: torch.from_numpy(array) for name, array in cut.items()})
