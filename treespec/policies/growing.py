"""Collecting the nodes of B trees level by level on the host: M nodes so far, w of them in a level."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from treespec.policies.children import Children, PickedChildren, pick_children, read_children, resolve_children
from treespec.protocols import DraftSource, Frontier, Proposal
from treespec.tree import PADDING_PARENT, POINT_MASS, ROOT_PARENT, TreeBatch
from treespec.tree.transfer import upload


class UnreadLevel(NamedTuple):
    """A level of a tree of a fixed shape that stays on an accelerator: one copy brings all of them to the host.

    The level is the children numbered `chosen` of the `picked` ones of `nodes`, in columns from `first` on.
    `widths`: see `choose_children`.
    """

    picked: PickedChildren
    widths: Sequence[int]
    nodes: Int[np.ndarray, "B F"]
    chosen: Int[np.ndarray, " w"]
    first: int

    def stand_in(self) -> Children:
        """The children that the host assumes before it has read them: all are there, with any tokens and values."""
        picked, shape = self.picked, self.picked.tokens.shape
        arrays = np.zeros(shape, np.int64), np.ones(shape, np.float32), np.ones(shape, np.bool_)
        return Children(*arrays, picked.draft_probs, picked.num_sampled, picked.is_without_replacement)

    def tokens_of(self, nodes: Int[np.ndarray, "B F"]) -> Int[Tensor, "B F"] | None:
        """The tokens of nodes of this level, on their device; None for others, or where rows' nodes differ."""
        offsets = nodes[0] - self.first
        if (nodes != nodes[0]).any() or offsets.min() < 0:
            return None
        tokens, index = self.picked.tokens.flatten(1), self.chosen[offsets]
        if np.array_equal(index, np.arange(tokens.shape[1])):
            return tokens
        return tokens.index_select(1, *upload(tokens.device, torch.from_numpy(index)))


class TreeBuilder:
    """Collects nodes of B rows side by side and turns them into a `TreeBatch`.

    A node's *column* is where it was added (the root's is 0), the same for all rows. Sources know nothing of columns:
    they number the nodes that were *expanded*, see `Frontier`.

    `tokens`, `parents`, `depths` int64 [B, M] (parent -2: no node), `values` float32 [B, M]: see `TreeBatch`. Nodes are
    given and returned as their columns, int64 [B, w] with -2 for padding.
    """

    def __init__(self, source: DraftSource) -> None:
        self._source = source
        self.tokens = source.root_tokens.cpu().numpy()[:, None]
        self.parents = np.full_like(self.tokens, ROOT_PARENT)
        self.depths = np.zeros_like(self.tokens)
        self.values = np.ones(self.tokens.shape, np.float32)
        self._rows = np.arange(len(self.tokens))[:, None]
        self._draft_index = np.full_like(self.tokens, POINT_MASS)
        self._flags = np.zeros(self.tokens.shape, np.bool_)
        self._numbers = np.full_like(self.tokens, PADDING_PARENT)
        """int64 [B, M]: expanded numbers by column."""
        self._expanded_tokens = self.tokens[:, :0]
        self._expanded_depths = self.depths[:, :0]
        self._ancestors = np.zeros((len(self.tokens), 0, 0), np.bool_)
        """bool [B, E, E]: of all expanded nodes."""
        self._probs: list[Tensor] = []
        self._unread: list[UnreadLevel] = []
        self._unread_expansions: list[tuple[int, Int[np.ndarray, "B F"]]] = []
        """Expanded number of the first, and columns, of nodes expanded before the host knew their tokens."""

    @property
    def root(self) -> Int[np.ndarray, "B 1"]:
        """The roots' columns."""
        return np.zeros_like(self._rows)

    def is_exhausted(self, nodes: Int[np.ndarray, "B w"]) -> bool:
        """True when no row has any of `nodes`."""
        return not self._is_node(nodes).any()

    def take(self, values: Shaped[np.ndarray, "B M"], nodes: Int[np.ndarray, "B w"]) -> Shaped[np.ndarray, "B w"]:
        """`values` at the columns `nodes`; padding reads the root."""
        return values[self._rows, np.maximum(nodes, 0)]

    def expand(self, nodes: Int[np.ndarray, "B F"]) -> Proposal:
        """Next-token distributions of `nodes`; each node is expanded once at most."""
        return self._source.expand(self._frontier(np.asarray(nodes)))

    def _frontier(self, nodes: Int[np.ndarray, "B F"]) -> Frontier:
        """Number `nodes` as expanded."""
        device_tokens = self._unread[-1].tokens_of(nodes) if self._unread else None
        if device_tokens is None:
            self._read_levels()
        columns = self.take(self.parents, nodes)
        is_node = self._is_node(nodes)
        above = np.where(columns == ROOT_PARENT, ROOT_PARENT, self.take(self._numbers, columns))
        parents = np.where(is_node, above, PADDING_PARENT)
        first = self._expanded_tokens.shape[1]
        count = nodes.shape[1]
        rows, offsets = np.nonzero(is_node)
        self._numbers[rows, nodes[is_node]] = first + offsets
        depths = np.where(is_node, self.take(self.depths, nodes), 0)
        self._expanded_tokens = np.concatenate([self._expanded_tokens, self.take(self.tokens, nodes)], 1)
        self._expanded_depths = np.concatenate([self._expanded_depths, depths], 1)
        known = self._ancestors
        self._ancestors = np.zeros((len(nodes), first + count, first + count), np.bool_)
        self._ancestors[:, :first, :first] = known
        if first:
            self._ancestors[:, first:, :first] = known[self._rows, np.maximum(parents, 0)] & is_node[..., None]
        self._ancestors[rows, first + offsets, first + offsets] = True
        tokens: Tensor | partial[Tensor] = torch.from_numpy(self._expanded_tokens)
        if device_tokens is not None:
            self._unread_expansions.append((first, nodes))
            tokens = partial(self._read_expanded, first + count)
        masks = torch.from_numpy(self._ancestors[:, first:])
        depths = torch.from_numpy(self._expanded_depths)
        return Frontier(torch.from_numpy(parents), masks, tokens, depths, device_tokens)

    def _read_expanded(self, count: int) -> Int[Tensor, "B E"]:
        """The tokens of the first `count` expanded nodes, read from the device if need be."""
        self._read_levels()
        return torch.from_numpy(self._expanded_tokens[:, :count])

    def _read_levels(self) -> None:
        """Bring all unread levels to the host, by one copy; what turns out to be no child becomes padding."""
        levels, self._unread = self._unread, []
        if not levels:
            return
        expanded = self.tokens.copy()  # Padding as well: it was expanded.
        for level, children in zip(levels, read_children([level[:2] for level in levels]), strict=True):
            columns = slice(level.first, level.first + len(level.chosen))
            above = level.nodes[:, level.chosen // children.tokens.shape[-1]]
            tokens, probs, is_picked = (array.reshape(len(above), -1)[:, level.chosen] for array in children[:3])
            expanded[:, columns] = tokens
            is_real = is_picked & self._is_node(above)
            self.tokens[:, columns] = np.where(is_real, tokens, 0)
            self.values[:, columns] = np.where(is_real, self.take(self.values, above) * probs, 0.0)
            self._flags[:, columns] &= is_real
            for array, nothing in ((self.parents, PADDING_PARENT), (self._draft_index, POINT_MASS)):
                array[:, columns] = np.where(is_real, array[:, columns], nothing)
        for first, nodes in self._unread_expansions:
            self._expanded_tokens[:, first : first + nodes.shape[1]] = expanded[self._rows, nodes]
        self._unread_expansions = []

    def add(
        self,
        nodes: Int[np.ndarray, "B F"],
        chosen: Children,
        values: Float[np.ndarray, "B F k"],
        columns: Int[np.ndarray, "*rows w"],
        *,
        is_read: bool = True,
    ) -> Int[np.ndarray, "B w"]:
        """Add a level of children; returns their columns.

        Args:
            nodes: their parents.
            chosen: the children of these.
            values: the children's path values.
            columns: [w] or [B, w] into the F * k children: those to be added, in this order. Siblings must keep their
                verification order, and of sampled siblings only later ones may be left out.
            is_read: see `grow`.
        """
        if is_read:
            self._read_levels()
        k = chosen.tokens.shape[-1]
        columns = columns + self.root  # One list for every row; `broadcast_to` takes longer.
        parents = np.asarray(nodes)[self._rows, columns // k]

        def picked(array: np.ndarray) -> np.ndarray:
            return array.reshape(len(array), -1)[self._rows, columns]

        is_real = picked(chosen.is_real) & self._is_node(parents)
        draft_index, is_sampled = self._index_distributions(chosen, columns)
        first = self.tokens.shape[1]
        level = {
            "tokens": np.where(is_real, picked(chosen.tokens), 0),
            "parents": np.where(is_real, parents, PADDING_PARENT),
            "depths": self.take(self.depths, parents) + 1,
            "values": np.where(is_real, picked(values), 0.0).astype(np.float32),
            "_draft_index": np.where(is_real, draft_index, POINT_MASS),
            "_flags": is_real & is_sampled & chosen.is_without_replacement,
            "_numbers": np.full_like(columns, PADDING_PARENT),
        }
        for name, fresh in level.items():
            setattr(self, name, np.concatenate([getattr(self, name), fresh], 1))
        return np.arange(first, self.tokens.shape[1]) + self.root

    def grow(
        self, nodes: Int[np.ndarray, "B F"], widths: Sequence[int], children: str, *, is_read: bool = True
    ) -> Int[np.ndarray, "B w"]:
        """Expand `nodes` and add `widths[f]` children of each: their columns, node by node.

        is_read: False leaves an accelerator's children there until `build`, or until the draft asks for their tokens.
            Then the builder's arrays do not have them yet, and only they may be expanded.
        """
        proposal = self.expand(nodes)
        resolved = resolve_children(children, proposal, self._source.is_sampling)
        picked = pick_children(proposal, widths, resolved, self._source.generator)
        k = max(widths)
        chosen = np.array([k * node + rank for node, width in enumerate(widths) for rank in range(width)])
        if not is_read and picked.tokens.device.type != "cpu" and picked.tokens.shape[-1] == k:
            unread = UnreadLevel(picked, widths, np.asarray(nodes), chosen, self.tokens.shape[1])
            self._unread.append(unread)
            level = unread.stand_in()
            return self.add(nodes, level, level.probs, chosen, is_read=False)
        (level,) = read_children([(picked, widths)])
        return self.add(nodes, level, self.take(self.values, nodes)[..., None] * level.probs, chosen)

    def build(self, keep: Bool[np.ndarray, "B M"] | None = None, is_width_fixed: bool = True) -> TreeBatch:
        """The trees of the collected nodes.

        Args:
            keep: the nodes wanted, with all their ancestors; None keeps all.
            is_width_fixed: see `TokenTree`.
        """
        self._read_levels()
        is_kept = self.parents != PADDING_PARENT
        is_kept = is_kept if keep is None else is_kept & keep
        probs, draft_index = self._table(is_kept)
        batch = TreeBatch(
            tokens=torch.from_numpy(self.tokens),
            parents=torch.from_numpy(self.parents),
            draft_probs=probs,
            draft_index=None if probs is None else torch.from_numpy(draft_index),
            is_without_replacement=None if probs is None else torch.from_numpy(self._flags),
            is_width_fixed=is_width_fixed,
            values=torch.from_numpy(self.values),
        )
        return batch.keep_nodes(torch.from_numpy(is_kept))

    def _table(self, is_kept: Bool[np.ndarray, "B M"]) -> tuple[Float[Tensor, "R V"] | None, Int[np.ndarray, "B M"]]:
        """The distributions that kept nodes were drawn from, and their rows by column."""
        if not self._probs or self._probs[0].device.type != "cpu":  # An accelerator would wait for the rows' numbers.
            return (torch.cat(self._probs) if self._probs else None), self._draft_index
        index = np.where(is_kept, self._draft_index, POINT_MASS)
        used, rows = np.unique(index[index >= 0], return_inverse=True)
        if not len(used):
            return None, index
        index[index >= 0] = rows
        drafted = [probs for level in self._probs for probs in level]
        return torch.stack([drafted[row] for row in used]), index  # Each is copied once, as a whole.

    def _is_node(self, nodes: Int[np.ndarray, "B w"]) -> Bool[np.ndarray, "B w"]:
        return (nodes >= 0) & (self.take(self.parents, nodes) != PADDING_PARENT)

    def _index_distributions(
        self, chosen: Children, columns: Int[np.ndarray, "B w"]
    ) -> tuple[Int[np.ndarray, "B w"], Bool[np.ndarray, "B w"]]:
        """The distribution row of every child, -1 for selected ones, and whether it was sampled."""
        if chosen.draft_probs is None:
            return np.full_like(columns, POINT_MASS), np.zeros(columns.shape, np.bool_)
        k = chosen.tokens.shape[-1]
        num_nodes = chosen.draft_probs.shape[1]
        is_sampled = columns % k < chosen.num_sampled
        first = sum(map(len, self._probs)) + num_nodes * self._rows
        self._probs.append(chosen.draft_probs.flatten(0, 1))
        return np.where(is_sampled, first + columns // k, POINT_MASS), is_sampled
