"""A target that drafts with its own first layers, and whose later layers go on from what those have computed.

The first k layers draft: every node that a drafter asks about leaves its keys and values in their caches, and its
hidden state behind layer k. Verification runs the layers behind k over the whole tree, from these hidden states; only
nodes that nobody asked about, the leaves, go through the first k layers before. So a node passes every layer once.
Until a commit the two parts hold different nodes: each has its own book of slots (`SlotCache`) over its layers of one
cache.

Axis letters: B rows, F drafted nodes, N tree nodes, M pending nodes of the first layers, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, StaticLayer

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.attention.mask import TreeAttention
from treespec.hf.cache.slot_cache import SlotCache
from treespec.hf.models.layers import SplitLayers
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.protocols import HiddenStates, Scores
from treespec.tree import PADDING_PARENT


class ExitScorer(TreeScorer):
    """A `TreeScorer` with an exit: see `EarlyExitScorer`."""

    def __init__(
        self,
        model: PreTrainedModel,
        exit_layer: int,
        *,
        cache: Cache | None = None,
        hidden_layers: Sequence[int] = (),
    ) -> None:
        """Wrap a model.

        Args:
            model, cache, hidden_layers: see `TreeScorer`.
            exit_layer: k, how many layers draft.

        Raises:
            ConfigError: the model has not more than k layers, or hidden states of the first k - 1 are wanted, which a
                verifying pass does not have.
            UnsupportedModelError: no list of decoder layers, or a cache that cannot be split; see also `TreeScorer`.
        """
        super().__init__(model, cache=cache, hidden_layers=hidden_layers)
        self.exit_layer = exit_layer
        self._layers = SplitLayers(model, exit_layer)
        within = [layer for layer in hidden_layers if 0 < layer % (self._layers.num_layers + 1) < exit_layer]
        if within:
            raise ConfigError(f"hidden states {within} lie before the early exit at layer {exit_layer}: exit earlier")
        self._early = _EarlyPart(model, self._layers)
        self._late = _LatePart(model, self._layers, hidden_layers)
        self._places: list[list[int]] = []

    def prefill(self, ids: Tensor, mask: Tensor) -> HiddenStates:
        """See `TreeScorer`: the prompt passes all layers at once."""
        states = super().prefill(ids, mask)
        cache, slots, lengths = self._state.cache, self._state.slots, self._state.lengths
        missing = self._layers.num_layers - len(cache.layers)
        cache.layers += [DynamicLayer() for _ in range(missing)]  # Layers that nothing was written to yet.
        if missing < 0 or any(isinstance(layer, StaticLayer) for layer in cache.layers):
            raise UnsupportedModelError("an early exit needs a growing cache with one layer for each of the model's")
        self._early.adopt(cache.layers[: self.exit_layer], slots.mask, lengths)
        self._late.adopt(cache.layers[self.exit_layer :], slots.mask, lengths)
        return states

    def draft(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """See `EarlyExitScorer`."""
        return self._early.extend(tokens, parents).logits

    def extend(self, tokens: Tensor, parents: Tensor) -> Scores:
        """See `TreeScorer`; once between commits. Finding the drafted nodes in the tree waits for the device."""
        self._places = self._compute_missing(tokens.tolist(), parents.tolist())
        self._late.hidden = self._early.hidden_of(self._places)
        return self._late.extend(tokens, parents)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """See `TreeScorer`."""
        drafted = [[self._places[row][node] for node in path] for row, path in enumerate(paths)]
        self._early.commit(drafted)
        self._late.commit(paths)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._early.select_rows(rows)
        self._late.select_rows(rows)

    def _compute_missing(self, tokens: list[list[int]], parents: list[list[int]]) -> list[list[int]]:
        """The first layers' pending node of every tree node; those that have none are computed, all in one pass."""
        places: list[list[int]] = []
        fresh: list[list[tuple[int, int]]] = []
        for known, num_known, row_tokens, row_parents in zip(*self._early.known(), tokens, parents, strict=True):
            row_places: list[int] = []
            row_fresh: list[tuple[int, int]] = []
            for token, parent in zip(row_tokens, row_parents, strict=True):
                if parent == PADDING_PARENT:
                    row_places.append(0)
                    continue
                above = row_places[parent] if parent >= 0 else parent
                place = known.setdefault((above, token), num_known + len(row_fresh))
                if place == num_known + len(row_fresh):
                    row_fresh.append((token, above))
                row_places.append(place)
            places.append(row_places)
            fresh.append(row_fresh)
        width = max(len(row) for row in fresh)
        if width:
            padded = torch.tensor([row + [(0, PADDING_PARENT)] * (width - len(row)) for row in fresh])
            self._early.compute(padded[..., 0].to(self.device), padded[..., 1])
        return places


class _Part(TreeScorer):
    """Some of a model's layers, with the slots of their caches."""

    def __init__(self, model: PreTrainedModel, layers: SplitLayers, hidden_layers: Sequence[int] = ()) -> None:
        super().__init__(model, hidden_layers=hidden_layers)
        self._layers = layers

    def adopt(self, layers: list[Any], slot_mask: Tensor, lengths: list[int]) -> None:
        """Go on from filled cache layers of S slots: slot_mask bool [B, S]."""
        self._slots = SlotCache(Cache(layers=layers), slot_mask, list(lengths))
        self._forget_pending(len(lengths))


class _EarlyPart(_Part):
    """The layers before the exit, and the hidden states that they leave."""

    def adopt(self, layers: list[Any], slot_mask: Tensor, lengths: list[int]) -> None:
        super().adopt(layers, slot_mask, lengths)
        self._forget_nodes()

    def extend(self, tokens: Tensor, parents: Tensor) -> Scores:
        scores = super().extend(tokens, parents)
        self._tokens.append(tokens)
        return scores

    def compute(self, tokens: Tensor, parents: Tensor) -> None:
        """`extend` without logits."""
        self._has_head = False
        try:
            self.extend(tokens, parents)
        finally:
            self._has_head = True

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        super().commit(paths)
        self._forget_nodes()

    def known(self) -> tuple[list[dict[tuple[int, int], int]], list[int]]:
        """Per row the pending nodes by (parent, token), and how many columns of them there are."""
        num_rows, num_known = len(self._state.lengths), self._parents.shape[1]
        if num_known == 0:
            return [{} for _ in range(num_rows)], [0] * num_rows
        tokens, parents = torch.cat(self._tokens, 1).tolist(), self._parents.tolist()
        found: list[dict[tuple[int, int], int]] = []
        for row_tokens, row_parents in zip(tokens, parents, strict=True):
            row: dict[tuple[int, int], int] = {}
            for node, (token, parent) in enumerate(zip(row_tokens, row_parents, strict=True)):
                if parent != PADDING_PARENT:
                    row.setdefault((parent, token), node)
            found.append(row)
        return found, [num_known] * num_rows

    def hidden_of(self, places: list[list[int]]) -> Tensor:
        """The hidden states [..., B, N, H] of pending nodes, N per row."""
        hidden = torch.cat(self._hidden, -2)
        columns = torch.tensor(places, device=hidden.device)
        rows = torch.arange(len(places), device=hidden.device).unsqueeze(1)
        return hidden[..., rows, columns, :]

    def _forget_nodes(self) -> None:
        self._tokens: list[Tensor] = []
        self._hidden: list[Tensor] = []
        self._has_head = True

    def _forward(self, tokens: Tensor, attention: TreeAttention, is_prefill: bool = False) -> Scores:
        with self._layers.early_only(self._has_head):
            scores = super()._forward(tokens, attention, is_prefill)
        self._hidden.append(self._layers.take_hidden())
        return scores


class _LatePart(_Part):
    """The layers behind the exit, which start from `hidden`, the first layers' hidden states [..., B, N, H]."""

    hidden: Tensor

    @property
    def _model_cache(self) -> Cache:
        """The cache as the model numbers its layers. A pass reads its length off the first one: here a late one."""
        layers = self._state.cache.layers
        return Cache(layers=[layers[0]] * self._layers.num_early + layers)

    def _forward(self, tokens: Tensor, attention: TreeAttention, is_prefill: bool = False) -> Scores:
        with self._layers.late_only(self.hidden):
            return super()._forward(tokens, attention, is_prefill)
