"""`TreeBatch`: the trees of all rows, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.errors import InvalidTreeError
from treespec.tree.arrays import PADDING_PARENT, POINT_MASS, TreeArrays, ancestor_mask, check_shapes
from treespec.tree.checks import is_drafted
from treespec.tree.token_tree import TokenTree


@dataclass(frozen=True, eq=False)
class TreeBatch(TreeArrays):
    """B trees side by side on the target's device: what the engine runs. Padding nodes stand last, parent -2.

    Args:
        tokens, parents, draft_index, is_without_replacement: as those of `TokenTree`, [B, N].
        draft_probs: float [R, V], shared by the rows, or None.
        is_width_fixed: see `TokenTree`.
        values: float [B, N], the drafter's estimates that a node's whole path is accepted (the root's is 1), or None.
            Rules never look at them.

    Raises:
        InvalidTreeError: wrong shapes or dtypes. Reading values would wait for the device, see `is_valid`.
    """

    values: Tensor | None = None

    def __post_init__(self) -> None:
        check_shapes(self, num_axes=2)
        shape, values = list(self.tokens.shape), self.values
        if values is not None and (list(values.shape) != shape or not values.is_floating_point()):
            raise InvalidTreeError(f"values must be float of tokens' shape {shape}, got {list(values.shape)}")

    @classmethod
    def from_trees(cls, trees: Sequence[TokenTree]) -> TreeBatch:
        """Pad trees of different sizes to one batch; their distribution tables are stacked.

        Raises:
            InvalidTreeError: not a list of trees, or distributions over different vocabularies.
        """
        if not isinstance(trees, Sequence) or not trees or not all(isinstance(tree, TokenTree) for tree in trees):
            raise InvalidTreeError(f"a batch needs a list of at least one TokenTree, got {trees!r}")
        width = max(tree.num_nodes for tree in trees)
        probs = [tree.draft_probs for tree in trees if tree.draft_probs is not None]
        if len({table.shape[1] for table in probs}) > 1:
            raise InvalidTreeError(f"trees of one batch must share V, got {[list(table.shape) for table in probs]}")
        offset, draft_rows = 0, []
        for tree in trees:
            row = torch.tensor(tree.draft_index_list)
            draft_rows.append(torch.where(row >= 0, row + offset, row))
            offset += 0 if tree.draft_probs is None else tree.draft_probs.shape[0]
        flags = [torch.tensor(tree.is_without_replacement_list) for tree in trees]
        device = trees[0].tokens.device

        def pad(rows: list[Tensor], value: int) -> Tensor:
            return torch.stack([torch.nn.functional.pad(r.to(device), (0, width - len(r)), value=value) for r in rows])

        return cls(
            tokens=pad([t.tokens for t in trees], 0),
            parents=pad([t.parents for t in trees], PADDING_PARENT),
            draft_probs=torch.cat(probs) if probs else None,
            draft_index=pad(draft_rows, POINT_MASS) if probs else None,
            is_without_replacement=pad(flags, 0) if probs else None,
            is_width_fixed=all(t.is_width_fixed for t in trees),
        )

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def max_nodes(self) -> int:
        """N: the width of the arrays, padding included."""
        return self.tokens.shape[1]

    @property
    def device(self) -> torch.device:
        return self.tokens.device

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
        """The rows as single trees, not checked (see `is_valid`): one host copy for all of them."""
        tokens, parents = torch.stack([self.tokens, self.parents]).tolist()
        return [self._row(*row) for row in zip(range(self.num_rows), tokens, parents, strict=True)]

    def keep_trees(self, tokens: list[list[int]], parents: list[list[int]]) -> None:
        """Build `trees` from lists [B][N] that the host has already, so that the device is not read again."""
        if "trees" not in vars(self):
            vars(self)["trees"] = [self._row(*row) for row in zip(range(self.num_rows), tokens, parents, strict=True)]

    def _row(self, row: int, tokens: list[int], parents: list[int]) -> TokenTree:
        tree, size = object.__new__(TokenTree), sum(parent != PADDING_PARENT for parent in parents)
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
    def is_valid(self) -> Bool[Tensor, ""]:
        """Whether the trees can have been drafted, see `is_drafted`: a flag to be read together with the verdicts."""
        return is_drafted(self)

    def limit_depth(self, max_depths: Sequence[int]) -> TreeBatch:
        """Drop nodes of row b deeper than `max_depths[b]`, but no root. Lossless: depth depends on no drawn token."""
        limit = torch.tensor(max_depths, device=self.device).clamp(min=0).unsqueeze(1)
        return self.keep_nodes((self.parents != PADDING_PARENT) & (self.depths <= limit))

    def best_chains(self) -> TreeBatch:
        """One path per row, for targets that verify chains only: see `TokenTree.best_chain`."""
        keep = torch.zeros_like(self.tokens, dtype=torch.bool)
        values = None if self.values is None else self.values.tolist()
        for row, tree in enumerate(self.trees):
            keep[row, list(tree.best_chain(values[row] if values else None))] = True
        return self.keep_nodes(keep)

    def keep_nodes(self, keep: Bool[Tensor, "B N"], width: int | None = None) -> TreeBatch:
        """The batch cut down to `keep`, which must hold every kept node's ancestors.

        `width` is the new N, enough for every row; None takes the largest row's, which waits for the device.
        """
        width = max(int(keep.sum(1).max()), 1) if width is None else width
        order = keep.logical_not().long().argsort(dim=1, stable=True)[:, :width]
        kept = keep.gather(1, order)
        new_id = (keep.long().cumsum(1) - 1).gather(1, self.parents.clamp(min=0))
        parents = torch.where(self.parents >= 0, new_id, self.parents).gather(1, order)

        def take(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.gather(1, order)

        return replace(
            self,
            tokens=self.tokens.gather(1, order),
            parents=torch.where(kept, parents, PADDING_PARENT),
            draft_index=take(self.draft_index),
            is_without_replacement=take(self.is_without_replacement),
            values=take(self.values),
        )
