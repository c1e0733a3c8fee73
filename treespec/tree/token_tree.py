"""`TokenTree`: one drafted tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from treespec.errors import InvalidTreeError
from treespec.tree.arrays import (
    IID,
    MIXED,
    POINT_MASS,
    SELECTED,
    WITHOUT_REPLACEMENT,
    TreeArrays,
    ancestor_mask,
    check_shapes,
)
from treespec.tree.checks import check_drafted
from treespec.tree.paths import Path, parents_of_paths, parse_paths

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, eq=False)
class TokenTree(TreeArrays):
    """One drafted tree of N nodes, with the distribution that every child was drawn from.

    `draft_index[i]` names the row of `draft_probs` that child i was drawn from, or is -1 for a point mass (a selected
    child). Where `is_without_replacement[i]`, the tokens of earlier siblings from the same row are zeroed and the row
    renormalised; any other zeroing (mixed sampling schemes) is already done in the stored row.

    Args:
        tokens: int64 [N].
        parents: int64 [N]; `parents[0] == -1` and `0 <= parents[i] < i` for the others.
        draft_probs: float [R, V], each row summing to one within 1e-4; None when every child is a point mass.
        draft_index: int64 [N]; the root's entry is -1. None stands for all -1.
        is_without_replacement: bool [N]. None stands for all False.
        is_width_fixed: True when no node's width depended on its own draws (K-SEQ and optimal transport need it).

    Raises `InvalidTreeError`: wrong shapes or dtypes; see also `check_drafted`.
    """

    def __post_init__(self) -> None:
        check_shapes(self, num_axes=1)
        check_drafted(self)

    @classmethod
    def from_paths(cls, paths: str | Sequence[Sequence[int]], tokens: Sequence[int] | Int[Tensor, "N"]) -> TokenTree:
        """A tree of point masses: the root's token, then one per rank path, see `parse_paths`."""
        return cls(_as_tokens(tokens), torch.tensor(parents_of_paths(parse_paths(paths)), device="cpu"))

    @classmethod
    def chain(cls, tokens: Sequence[int] | Int[Tensor, "N"], probs: Float[Tensor, "D V"] | None = None) -> TokenTree:
        """A tree of width one: tokens, the root's first, and the distributions that the D = N - 1 others were drawn
        from."""
        ids = _as_tokens(tokens)
        steps = torch.arange(-1, len(ids) - 1, device="cpu")
        return cls(ids, steps, probs, None if probs is None else steps.clone())

    @property
    def num_nodes(self) -> int:
        """N, the root included."""
        return self.tokens.shape[0]

    # The arrays on the host, each read once.

    @cached_property
    def token_list(self) -> list[int]:
        return self.tokens.tolist()

    @cached_property
    def parent_list(self) -> list[int]:
        return self.parents.tolist()

    @cached_property
    def draft_index_list(self) -> list[int]:
        return [POINT_MASS] * self.num_nodes if self.draft_index is None else self.draft_index.tolist()

    @cached_property
    def is_without_replacement_list(self) -> list[bool]:
        flags = self.is_without_replacement
        return [False] * self.num_nodes if flags is None else flags.tolist()

    @cached_property
    def children_lists(self) -> list[list[int]]:
        """Children of every node in verification order."""
        children: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for node, parent in enumerate(self.parent_list):
            if parent >= 0:
                children[parent].append(node)
        return children

    @cached_property
    def depths(self) -> list[int]:
        """Depth of every node; the root's is 0."""
        depths: list[int] = []
        for parent in self.parent_list:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    @property
    def is_chain(self) -> bool:
        """Whether no node has more than one child."""
        return all(len(children) <= 1 for children in self.children_lists)

    @cached_property
    def sampling_schemes(self) -> frozenset[str]:
        """How the sibling groups were drawn: a subset of selected, iid, without_replacement, mixed.

        An only child that was sampled counts as iid: with one draw there is nothing to replace.
        """
        return frozenset(self._scheme(group) for group in self.children_lists if group)

    def _scheme(self, group: list[int]) -> str:
        rows = {self.draft_index_list[i] for i in group}
        flags = {self.is_without_replacement_list[i] for i in group}
        if rows == {POINT_MASS}:
            return SELECTED
        if len(rows) > 1 or (len(flags) > 1 and len(group) > 1):
            return MIXED
        return WITHOUT_REPLACEMENT if flags == {True} and len(group) > 1 else IID

    def children(self, node: int) -> list[int]:
        """See `VerifiableTree`."""
        return self.children_lists[node]

    def token(self, node: int) -> int:
        return self.token_list[node]

    def draft_probs_of(self, node: int) -> Float[Tensor, "V"] | None:
        """See `VerifiableTree`."""
        row = self.draft_index_list[node]
        if row == POINT_MASS or self.draft_probs is None:
            return None
        probs = self.draft_probs[row]
        siblings = self.children_lists[self.parent_list[node]]
        earlier = [self.token_list[i] for i in siblings if i < node and self.draft_index_list[i] == row]
        if not earlier or not self.is_without_replacement_list[node]:
            return probs
        probs = probs.index_fill(0, torch.tensor(earlier, device=probs.device), 0.0)
        return probs / probs.sum()

    def path_to(self, node: int) -> Path:
        """Node ids from the root to `node`, both included."""
        path = [node]
        while self.parent_list[path[-1]] >= 0:
            path.append(self.parent_list[path[-1]])
        return tuple(reversed(path))

    def best_chain(self, values: Sequence[float] | None = None) -> Path:
        """The path to a leaf with the greatest sum of `values` (None: the longest one), root included.

        Sampled children may not be chosen by their tokens: there the first draw is taken.
        """
        gains = [1.0] * self.num_nodes if values is None else list(values)[: self.num_nodes]
        best: dict[int, int] = {}
        for node in range(self.num_nodes - 1, -1, -1):
            children = self.children_lists[node]
            if children:
                best[node] = children[0] if self.draft_probs is not None else max(children, key=gains.__getitem__)
                gains[node] += gains[best[node]]
        path = [0]
        while path[-1] in best:
            path.append(best[path[-1]])
        return tuple(path)

    @cached_property
    def token_paths(self) -> list[Path]:
        """Per node the tokens on its path below the root."""
        paths: list[Path] = [()]
        for token, parent in zip(self.token_list[1:], self.parent_list[1:], strict=True):
            paths.append((*paths[parent], token))
        return paths

    def leaf_paths(self) -> list[Path]:
        """One path of node ids, root included, per leaf, in the order of the leaves' ids."""
        return [self.path_to(i) for i, children in enumerate(self.children_lists) if not children]

    def ancestor_mask(self) -> Bool[Tensor, "N N"]:
        """True at (i, j) where node j is node i or one of its ancestors."""
        return ancestor_mask(self.parents.unsqueeze(0))[0]

    def to_networkx(self) -> networkx.DiGraph:
        """A directed graph, parent to child; nodes carry `token` and `depth`."""
        import networkx

        graph = networkx.DiGraph()
        for node, parent in enumerate(self.parent_list):
            graph.add_node(node, token=self.token_list[node], depth=self.depths[node])
            if parent >= 0:
                graph.add_edge(parent, node)
        return graph


def _as_tokens(tokens: Sequence[int] | Shaped[Tensor, "..."]) -> Int[Tensor, "N"]:
    """Raises `InvalidTreeError`: `tokens` is not a flat list of integers."""
    try:
        ids = tokens if isinstance(tokens, Tensor) else torch.as_tensor(tokens, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTreeError(f"tokens must be a flat list of integers: {error}") from error
    if ids.ndim != 1 or (ids.dtype.is_floating_point and len(ids)):
        raise InvalidTreeError(f"tokens must be a flat list of integers, got {ids.dtype} {list(ids.shape)}")
    return ids.to(torch.int64)
