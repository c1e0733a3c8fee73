"""Token trees, batches of them, and verdicts: the types that every other module speaks.

Axis letters: B rows, N nodes, V vocabulary, R proposal laws. Node 0 is the root: the last committed token, whose
key/value rows are not cached yet. Parents stand before children; siblings stand in *verification order*.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from treespec.errors import InvalidTreeError

if TYPE_CHECKING:
    import networkx

ROOT_PARENT = -1
PADDING_PARENT = -2
POINT_MASS = -1

SELECTED, IID, WITHOUT_REPLACEMENT, MIXED = "selected", "iid", "without_replacement", "mixed"

Path = tuple[int, ...]


class Verdict(NamedTuple):
    """What a verification rule decided about one tree."""

    path: Path
    """The accepted node ids from the root, root included."""
    next_token: int
    """The token that follows the path, drawn from what is left of the target law."""
    is_bonus: bool
    """True for a bonus token (drawn from the target law at a leaf), False for a residual token (every child of the
    path's last node was rejected)."""

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens: the path without its root."""
        return len(self.path) - 1


@dataclass(frozen=True, eq=False)
class TokenTree:
    """One drafted tree of N nodes, with the law that every child was really drawn from.

    A child's *proposal law* is compactly stored: `law_index[i]` names a row of `laws`, or is -1 for a point mass (a
    child selected deterministically). Where `is_without_replacement[i]`, the tokens of earlier siblings from the same
    row are zeroed and the row renormalised; any other zeroing (mixed families) is already done in the stored row.

    Args:
        tokens: int64 [N].
        parents: int64 [N]; `parents[0] == -1` and `0 <= parents[i] < i` for the others.
        laws: float [R, V], each row summing to one within 1e-4; None when every child is a point mass.
        law_index: int64 [N]; the root's entry is -1. None stands for all -1.
        is_without_replacement: bool [N]. None stands for all False.
        is_width_fixed: True when no node's width depended on its own draws (K-SEQ and optimal transport need it).

    Raises:
        InvalidTreeError: wrong shapes or dtypes, no or two roots, a child before its parent, a law that does not sum
            to one, a drawn token of probability zero.
    """

    tokens: Tensor
    parents: Tensor
    laws: Tensor | None = None
    law_index: Tensor | None = None
    is_without_replacement: Tensor | None = None
    is_width_fixed: bool = True

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_structure(self.parents.tolist())
        _check_laws(self)

    @classmethod
    def from_paths(cls, paths: str | Sequence[Sequence[int]], tokens: Sequence[int] | Tensor) -> TokenTree:
        """Build a tree of point masses from a list of rank paths, e.g. `[(0,), (1,), (0, 0)]` (vLLM's literal).

        Args:
            paths: see `parse_paths`.
            tokens: the root's token, then one per path in the given order; int64 [len(paths) + 1].
        """
        parents = parents_of_paths(parse_paths(paths))
        return cls(_as_tokens(tokens), torch.tensor(parents, dtype=torch.int64))

    @classmethod
    def chain(cls, tokens: Sequence[int] | Tensor, laws: Tensor | None = None) -> TokenTree:
        """A tree of width one. `tokens` int64 [N] starts with the root; `laws` float [N - 1, V] are the draft laws."""
        ids = _as_tokens(tokens)
        steps = torch.arange(-1, len(ids) - 1)
        return cls(ids, steps, laws, None if laws is None else steps.clone())

    @property
    def num_nodes(self) -> int:
        """N, the root included."""
        return self.tokens.shape[0]

    @cached_property
    def token_list(self) -> list[int]:
        """The nodes' tokens on the host, read once."""
        return self.tokens.tolist()

    @cached_property
    def parent_list(self) -> list[int]:
        """The nodes' parents on the host, read once; the root's is -1."""
        return self.parents.tolist()

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
    def families(self) -> frozenset[str]:
        """How the sibling groups were drawn: a subset of selected, iid, without_replacement, mixed.

        An only child that was sampled counts as iid: with one draw there is nothing to replace.
        """
        return frozenset(self._family(group) for group in self.children_lists if group)

    def _family(self, group: list[int]) -> str:
        rows = {self._law_index_list[i] for i in group}
        flags = {self._flag_list[i] for i in group}
        if rows == {POINT_MASS}:
            return SELECTED
        if len(rows) > 1 or (len(flags) > 1 and len(group) > 1):
            return MIXED
        return WITHOUT_REPLACEMENT if flags == {True} and len(group) > 1 else IID

    @cached_property
    def _law_index_list(self) -> list[int]:
        return [POINT_MASS] * self.num_nodes if self.law_index is None else self.law_index.tolist()

    @cached_property
    def _flag_list(self) -> list[bool]:
        flags = self.is_without_replacement
        return [False] * self.num_nodes if flags is None else flags.tolist()

    def children(self, node: int) -> list[int]:
        """Child ids of a node in verification order."""
        return self.children_lists[node]

    def token(self, node: int) -> int:
        """The token of a node."""
        return self.token_list[node]

    def law(self, node: int) -> Tensor | None:
        """The law that this child was drawn from given what was drawn before it: float [V], or None: a point mass."""
        row = self._law_index_list[node]
        if row == POINT_MASS or self.laws is None:
            return None
        law = self.laws[row]
        earlier = self._earlier_siblings(node, row) if self._flag_list[node] else []
        if not earlier:
            return law
        law = law.index_fill(0, torch.tensor(earlier, device=law.device), 0.0)
        return law / law.sum()

    def _earlier_siblings(self, node: int, row: int) -> list[int]:
        siblings = self.children_lists[self.parent_list[node]]
        before = siblings[: siblings.index(node)]
        return [self.token_list[i] for i in before if self._law_index_list[i] == row]

    def path_to(self, node: int) -> Path:
        """Node ids from the root to `node`, both included."""
        path = [node]
        while self.parent_list[path[-1]] >= 0:
            path.append(self.parent_list[path[-1]])
        return tuple(reversed(path))

    def best_chain(self, values: Sequence[float] | None = None) -> Path:
        """The path to a leaf with the greatest sum of `values` (None: the longest one), root included.

        Sampled children may not be chosen by their tokens: of these the first draw is followed.
        """
        gains = [1.0] * self.num_nodes if values is None else list(values)[: self.num_nodes]
        best: dict[int, int] = {}
        for node in range(self.num_nodes - 1, -1, -1):
            children = self.children_lists[node]
            if children:
                best[node] = children[0] if self.laws is not None else max(children, key=gains.__getitem__)
                gains[node] += gains[best[node]]
        path = [0]
        while path[-1] in best:
            path.append(best[path[-1]])
        return tuple(path)

    def leaf_paths(self) -> list[Path]:
        """One path of node ids, root included, per leaf, in the order of the leaves' ids."""
        return [self.path_to(i) for i, children in enumerate(self.children_lists) if not children]

    def to_paths(self) -> list[Path]:
        """The tree's shape as rank paths in node order: the inverse of `from_paths`."""
        paths: list[Path] = [()]
        for node in range(1, self.num_nodes):
            parent = self.parent_list[node]
            paths.append((*paths[parent], self.children_lists[parent].index(node)))
        return paths[1:]

    def ancestor_mask(self) -> Tensor:
        """bool [N, N]: entry (i, j) tells whether j is i itself or an ancestor of i."""
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


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """B trees side by side on the target's device: what the engine runs. Padding nodes stand last, parent -2.

    Args:
        tokens: int64 [B, N].
        parents: int64 [B, N].
        laws: float [R, V], shared by the rows, or None.
        law_index: int64 [B, N] into `laws`, or None for all -1.
        is_without_replacement: bool [B, N], or None for all False.
        is_width_fixed: see `TokenTree`.
        values: float [B, N], the drafter's estimates that a node's whole path is accepted (the root's is 1), or None.
            Rules never look at them.

    Raises:
        InvalidTreeError: wrong shapes or dtypes. Values are not read here, which would wait for the device: `is_valid`
            is a flag to be read together with the verdicts.
    """

    tokens: Tensor
    parents: Tensor
    laws: Tensor | None = None
    law_index: Tensor | None = None
    is_without_replacement: Tensor | None = None
    is_width_fixed: bool = True
    values: Tensor | None = None

    def __post_init__(self) -> None:
        _check_shapes(self, num_axes=2)

    @classmethod
    def from_trees(cls, trees: Sequence[TokenTree]) -> TreeBatch:
        """Pad trees of different sizes to one batch; their law tables are stacked."""
        if not trees:
            raise InvalidTreeError("a batch needs at least one tree")
        width = max(tree.num_nodes for tree in trees)
        laws = [tree.laws for tree in trees if tree.laws is not None]
        if len({table.shape[1] for table in laws}) > 1:
            raise InvalidTreeError(f"laws of one batch must share V, got {[list(table.shape) for table in laws]}")
        offset, law_rows = 0, []
        for tree in trees:
            row = torch.tensor(tree._law_index_list)
            law_rows.append(torch.where(row >= 0, row + offset, row))
            offset += 0 if tree.laws is None else tree.laws.shape[0]
        device = trees[0].tokens.device

        def pad(rows: list[Tensor], value: int) -> Tensor:
            return torch.stack([torch.nn.functional.pad(r.to(device), (0, width - len(r)), value=value) for r in rows])

        return cls(
            tokens=pad([t.tokens for t in trees], 0),
            parents=pad([t.parents for t in trees], PADDING_PARENT),
            laws=torch.cat(laws) if laws else None,
            law_index=pad(law_rows, POINT_MASS) if laws else None,
            is_without_replacement=pad([torch.tensor(t._flag_list) for t in trees], 0) if laws else None,
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
    def num_nodes(self) -> Tensor:
        """int64 [B], padding not counted."""
        return (self.parents != PADDING_PARENT).sum(1)

    @cached_property
    def depths(self) -> Tensor:
        """int64 [B, N]; 0 for the root and for padding."""
        return (self.ancestors.sum(-1) - 1).clamp(min=0)

    @cached_property
    def ancestors(self) -> Tensor:
        """bool [B, N, N], see `ancestor_mask`."""
        return ancestor_mask(self.parents)

    @cached_property
    def trees(self) -> list[TokenTree]:
        """The rows as single trees, unchecked (`is_valid` tells): one host copy for all of them."""
        tokens, parents = torch.stack([self.tokens, self.parents]).tolist()
        return [self._row(*row) for row in zip(range(self.num_rows), tokens, parents, strict=True)]

    def keep_trees(self, tokens: list[list[int]], parents: list[list[int]]) -> None:
        """Build `trees` from lists [B][N] that came to the host with something else: they are not read again."""
        if "trees" not in vars(self):
            vars(self)["trees"] = [self._row(*row) for row in zip(range(self.num_rows), tokens, parents, strict=True)]

    def _row(self, row: int, tokens: list[int], parents: list[int]) -> TokenTree:
        tree, size = object.__new__(TokenTree), sum(parent != PADDING_PARENT for parent in parents)
        vars(tree).update(token_list=tokens[:size], parent_list=parents[:size])
        cut = {name: getattr(self, name) for name in ("tokens", "parents", "law_index", "is_without_replacement")}
        for name, value in cut.items():
            object.__setattr__(tree, name, None if value is None else value[row, :size])
        object.__setattr__(tree, "laws", self.laws)
        object.__setattr__(tree, "is_width_fixed", self.is_width_fixed)
        return tree

    @cached_property
    def families(self) -> frozenset[str]:
        return frozenset().union(*(tree.families for tree in self.trees))

    @property
    def is_chain(self) -> bool:
        return all(tree.is_chain for tree in self.trees)

    @cached_property
    def is_valid(self) -> Tensor:
        """bool []: parents in order, laws that sum to one within 1e-4, no drawn token of probability zero."""
        column = torch.arange(self.max_nodes, device=self.device)
        is_node = self.parents != PADDING_PARENT
        in_order = ((self.parents < column) & (self.parents >= 0)) | ~is_node
        good = in_order[:, 1:].all() & (self.parents[:, 0] == ROOT_PARENT).all()
        good = good & (is_node.long().diff(dim=1) <= 0).all()
        if self.laws is None or self.law_index is None:
            return good
        num_laws, vocab_size = self.laws.shape
        # Least entries, for comparing all of them takes a CPU ten times as long; NaN fails either comparison.
        sums_to_one = ((self.laws.sum(-1) - 1).abs() <= 1e-4).all() & (self.laws.amin(-1) >= 0).all()
        in_range = (self.law_index >= POINT_MASS) & (self.law_index < num_laws)
        in_range = in_range & (self.tokens >= 0) & (self.tokens < vocab_size)
        # Forced into range, for an index outside of it would crash the device before the flag is read.
        row, token = self.law_index.clamp(0, num_laws - 1), self.tokens.clamp(0, vocab_size - 1)
        is_drawn = in_range & (self.laws[row, token] > 0) & ~self._is_drawn_again
        return good & sums_to_one & (is_drawn | (self.law_index == POINT_MASS) | ~is_node).all()

    @property
    def _is_drawn_again(self) -> Tensor:
        """bool [B, N]: drawn without replacement, though an earlier sibling from the same row had taken the token."""
        if self.is_without_replacement is None or self.law_index is None:
            return torch.zeros_like(self.tokens, dtype=torch.bool)

        def is_same(values: Tensor) -> Tensor:
            return values.unsqueeze(2) == values.unsqueeze(1)

        is_repeated = is_same(self.parents) & is_same(self.law_index) & is_same(self.tokens)
        return is_repeated.tril(-1).any(2) & self.is_without_replacement

    def limit_depth(self, max_depths: Sequence[int]) -> TreeBatch:
        """Drop the nodes of row b that are deeper than `max_depths[b]`. Lossless: depth depends on no drawn token."""
        limit = torch.tensor(max_depths, device=self.device).unsqueeze(1)
        keep = (self.parents != PADDING_PARENT) & (self.depths <= limit)
        return self.keep_nodes(keep)

    def best_chains(self) -> TreeBatch:
        """One path per row, for targets that verify chains only: see `TokenTree.best_chain`."""
        keep = torch.zeros_like(self.tokens, dtype=torch.bool)
        values = None if self.values is None else self.values.tolist()
        for row, tree in enumerate(self.trees):
            keep[row, list(tree.best_chain(values[row] if values else None))] = True
        return self.keep_nodes(keep)

    def keep_nodes(self, keep: Tensor, width: int | None = None) -> TreeBatch:
        """The batch cut down to `keep` bool [B, N], which must hold every kept node's ancestors.

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
            law_index=take(self.law_index),
            is_without_replacement=take(self.is_without_replacement),
            values=take(self.values),
        )


def ancestor_mask(parents: Tensor) -> Tensor:
    """Ancestor relation of batched trees: parents int64 [B, N] to bool [B, N, N].

    Entry (b, i, j) tells whether j is i itself or an ancestor of i in row b; padding rows are all False.
    """
    num_rows, num_nodes = parents.shape
    mask = torch.eye(num_nodes, dtype=torch.bool, device=parents.device).repeat(num_rows, 1, 1)
    mask &= (parents != PADDING_PARENT).unsqueeze(-1)
    is_child = parents >= 0
    # Pointer doubling: after step t every node knows its 2^t nearest ancestors, so depth costs log2(N) steps.
    hop = parents.clamp(0, num_nodes - 1)
    known = torch.zeros_like(mask).scatter_(2, hop.unsqueeze(-1), is_child.unsqueeze(-1)) | mask
    for _ in range(max(num_nodes - 1, 1).bit_length()):
        known = known | (known.to(torch.float32) @ known.to(torch.float32) > 0)
    return known & mask.any(-1, keepdim=True)


def parse_paths(paths: str | Sequence[Sequence[int]]) -> list[Path]:
    """Read a list of rank paths, given as such or as its literal, e.g. `"[(0,), (1,), (0, 0)]"`.

    Returns:
        The paths in the given order, every parent before its children.

    Raises:
        InvalidTreeError: not a list of tuples of ranks, a duplicate, or a path whose parent or earlier sibling does
            not stand before it.
    """
    try:
        listed = ast.literal_eval(paths) if isinstance(paths, str) else paths
        parsed = [tuple(index(rank) for rank in path) for path in listed]
    except (ValueError, SyntaxError, TypeError) as error:
        raise InvalidTreeError(f"expected a list of rank paths such as [(0,), (1,), (0, 0)], got {paths!r}") from error
    seen: set[Path] = {()}
    for path in parsed:
        if not path or min(path) < 0 or path in seen:
            raise InvalidTreeError(f"path {path} is empty, negative or given twice in {paths!r}")
        if path[:-1] not in seen:
            raise InvalidTreeError(f"path {path} stands before its parent {path[:-1]} in {paths!r}")
        if path[-1] > 0 and (*path[:-1], path[-1] - 1) not in seen:
            raise InvalidTreeError(f"path {path} stands before its sibling of rank {path[-1] - 1} in {paths!r}")
        seen.add(path)
    return parsed


def parents_of_paths(paths: Sequence[Path]) -> list[int]:
    """Parent ids of the tree whose node i + 1 is `paths[i]`; the root's is -1."""
    ids = {(): 0} | {path: i + 1 for i, path in enumerate(paths)}
    return [ROOT_PARENT] + [ids[path[:-1]] for path in paths]


def _as_tokens(tokens: Sequence[int] | Tensor) -> Tensor:
    ids = torch.as_tensor(tokens)
    if ids.is_floating_point() and ids.numel() > 0:
        raise InvalidTreeError(f"tokens must be integers, got {ids.dtype}")
    return ids.to(torch.int64)


def _check_shapes(tree: TokenTree | TreeBatch, num_axes: int = 1) -> None:
    shape = tree.tokens.shape
    letters = "[N]" if num_axes == 1 else "[B, N]"
    if len(shape) != num_axes or 0 in shape:
        raise InvalidTreeError(f"tokens must be int64 {letters} with at least a root, got shape {list(shape)}")
    expected = {"tokens": torch.int64, "parents": torch.int64, "law_index": torch.int64}
    for name, dtype in {**expected, "is_without_replacement": torch.bool}.items():
        value = getattr(tree, name)
        if value is not None and (value.shape != shape or value.dtype != dtype):
            got = f"{value.dtype} {list(value.shape)}"
            raise InvalidTreeError(f"{name} must be {dtype} of tokens' shape {list(shape)}, got {got}")
    values = getattr(tree, "values", None)
    if values is not None and (values.shape != shape or not values.is_floating_point()):
        raise InvalidTreeError(f"values must be float of tokens' shape {list(shape)}, got {list(values.shape)}")
    laws = tree.laws
    if laws is not None and (laws.ndim != 2 or 0 in laws.shape or not laws.is_floating_point()):
        raise InvalidTreeError(f"laws must be float [R, V], at least one, or None: got {laws.dtype} {list(laws.shape)}")
    if (laws is None) != (tree.law_index is None):
        raise InvalidTreeError("laws and law_index come together: give both, or neither for a tree of point masses")


def _check_structure(parents: list[int]) -> None:
    if parents[0] != ROOT_PARENT:
        raise InvalidTreeError(f"node 0 must be the root (parent -1), its parent is {parents[0]}")
    for node, parent in enumerate(parents[1:], start=1):
        if parent == ROOT_PARENT:
            raise InvalidTreeError(f"node {node} is a second root: only node 0 may have parent -1")
        if not 0 <= parent < node:
            raise InvalidTreeError(f"node {node} has parent {parent}: a parent must stand before its child (no cycles)")


def _check_laws(tree: TokenTree) -> None:
    if tree.laws is None or tree.law_index is None:
        return
    rows, num_laws = tree._law_index_list, tree.laws.shape[0]
    if rows[0] != POINT_MASS or min(rows) < POINT_MASS or max(rows) >= num_laws:
        raise InvalidTreeError(f"law_index must be -1 at the root and in [-1, {num_laws}) elsewhere, got {rows}")
    sums = tree.laws.sum(-1)
    bad = ((sums - 1).abs() <= 1e-4).logical_not() | (tree.laws < 0).any(-1)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise InvalidTreeError(f"law {row} is not a probability law: its entries sum to {float(sums[row]):.6g}")
    for node in range(1, tree.num_nodes):
        law, token = tree.law(node), tree.token(node)
        if law is not None and not (0 <= token < law.shape[0] and law[token] > 0):
            raise InvalidTreeError(f"node {node} carries token {token}, which its proposal law gives probability zero")
