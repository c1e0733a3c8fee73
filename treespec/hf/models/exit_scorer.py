"""A target that drafts with its own first layers; its other layers verify from the hidden states of the first.

For comparison: with a target that was not trained for it (SmolLM2-135M, in this project's results) early exit decodes
at about half the speed of plain decoding.

The first k layers draft: every node that a drafter expands leaves its keys and values in their caches, and its hidden
state after layer k. Verification runs the layers after k over the whole tree, from these hidden states; only nodes that
were not expanded, the leaves, go through the first k layers before. So a node passes every layer once. Until a commit
the two parts hold different nodes, so each has its own `SlotCache` over its layers of one cache.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, StaticLayer

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.attention.mask import TreeAttention
from treespec.hf.cache.slot_cache import SlotCache
from treespec.hf.introspect import ModelFacts
from treespec.hf.models.layers import SplitLayers
from treespec.hf.models.prompt import PromptInputs, ReadPrompt
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.protocols import HiddenStates, Scores
from treespec.tree import PADDING_PARENT, pad_rows
from treespec.tree.transfer import download, upload


class ExitScorer(TreeScorer):
    """A `TreeScorer` with an exit, see `EarlyExitScorer`; `exit_layer` k is how many layers draft.

    Raises:
        ConfigError: the model has no more than k layers, or hidden states of the first k - 1 are wanted, which a
            verifying pass does not have.
        UnsupportedModelError: no list of decoder layers, or a cache that cannot be split; see also `TreeScorer`.
    """

    def __init__(
        self,
        model: PreTrainedModel | ModelFacts,
        exit_layer: int,
        *,
        cache: Cache | None = None,
        prompt: PromptInputs | None = None,
        hidden_layers: Sequence[int] = (),
    ) -> None:
        super().__init__(model, cache=cache, prompt=prompt, hidden_layers=hidden_layers)
        self.exit_layer = exit_layer
        self._layers = SplitLayers(self.facts.model, exit_layer)
        within = [layer for layer in hidden_layers if 0 < layer % (self._layers.num_layers + 1) < exit_layer]
        if within:
            raise ConfigError(f"hidden states {within} lie before the early exit at layer {exit_layer}: exit earlier")
        self._early = _EarlyPart(self.facts, self._layers)
        self._late = _LatePart(self.facts, self._layers, hidden_layers)
        self._early_ids: list[list[int]] = []

    @property
    def num_draft_weights(self) -> int:
        """The share of `num_weights` that a draft pass reads."""
        return self.num_weights * self.exit_layer // self._layers.num_layers

    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> HiddenStates:
        states = super().prefill(ids, mask)
        cache = self._state.cache
        slots = self._state.slots
        lengths = self._state.lengths
        missing = self._layers.num_layers - len(cache.layers)
        cache.layers += [DynamicLayer() for _ in range(missing)]  # Layers without tokens yet.
        if missing < 0 or any(isinstance(layer, StaticLayer) for layer in cache.layers):
            raise UnsupportedModelError("an early exit needs a growing cache with one layer for each of the model's")
        exit_logits_differ = self._read and replace(self._read, last_logits=None)
        self._early.adopt(cache.layers[: self.exit_layer], slots.mask.to(self.device), lengths, exit_logits_differ)
        self._late.adopt(cache.layers[self.exit_layer :], slots.mask.to(self.device), lengths, self._read)
        return states

    def draft(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"]) -> Float[Tensor, "B F V"]:
        return self._early.extend(tokens, parents).logits

    def extend(self, tokens: Int[Tensor, "B N"], parents: Int[Tensor, "B N"]) -> Scores:
        """See `TreeScorer`; once between commits."""
        self._early_ids = self._compute_missing(tokens.tolist(), parents.tolist())
        self._late.hidden = self._early.hidden_of(self._early_ids)
        return self._late.extend(tokens, parents)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        self._early.commit([[self._early_ids[row][node] for node in path] for row, path in enumerate(paths)])
        self._late.commit(paths)

    def select_rows(self, rows: Sequence[int]) -> None:
        self._early.select_rows(rows)
        self._late.select_rows(rows)

    def _compute_missing(self, tokens: list[list[int]], parents: list[list[int]]) -> list[list[int]]:
        """Every tree node's pending id in the early part; those that it has not computed are computed in one pass."""
        known, num_known = self._early.known()
        early_ids: list[list[int]] = [[] for _ in tokens]
        missing: list[list[tuple[int, int]]] = [[] for _ in tokens]
        for row, row_ids in enumerate(early_ids):
            for token, parent in zip(tokens[row], parents[row], strict=True):
                if parent == PADDING_PARENT:
                    row_ids.append(0)
                    continue
                early_parent = row_ids[parent] if parent >= 0 else parent
                if (early_parent, token) not in known[row]:
                    known[row][early_parent, token] = num_known + len(missing[row])
                    missing[row].append((token, early_parent))
                row_ids.append(known[row][early_parent, token])
        if any(missing):
            padded = torch.tensor(pad_rows(missing, (0, PADDING_PARENT)))
            self._early.extend(padded[..., 0], padded[..., 1], has_head=False)
        return early_ids


class _Part(TreeScorer):
    """Some of a model's layers, with their caches."""

    def __init__(self, model: ModelFacts, layers: SplitLayers, hidden_layers: Sequence[int] = ()) -> None:
        super().__init__(model, hidden_layers=hidden_layers)
        self._layers = layers

    def adopt(
        self, layers: list[Any], slot_mask: Bool[Tensor, "B S"], lengths: list[int], read: ReadPrompt | None
    ) -> None:
        """Continue from filled cache layers."""
        self._read = read
        self._slots = SlotCache(Cache(layers=layers), slot_mask, list(lengths))
        self._drop_pending(len(lengths))


class _EarlyPart(_Part):
    """The layers before the exit, and the hidden states that they return."""

    def extend(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"], has_head: bool = True) -> Scores:
        """See `TreeScorer`; without the head the logits mean nothing."""
        self._has_head = has_head
        scores = super().extend(tokens, parents)
        self._tokens.append(tokens)
        return scores

    def known(self) -> tuple[list[dict[tuple[int, int], int]], int]:
        """Per row the pending ids by (parent, token), the first of equal ones; and how many pending nodes a row has."""
        found: list[dict[tuple[int, int], int]] = [{} for _ in self._state.lengths]
        num_known = self._parents.shape[1]
        if not num_known:
            return found, 0
        tokens = torch.cat(download(*self._tokens), 1).tolist()
        for row, parents in enumerate(self._parents.tolist()):
            for node, parent in enumerate(parents):
                if parent != PADDING_PARENT:
                    found[row].setdefault((parent, tokens[row][node]), node)
        return found, num_known

    def hidden_of(self, nodes: list[list[int]]) -> Float[Tensor, "*streams B N H"]:
        """The hidden states of pending nodes, N per row."""
        hidden = torch.cat(self._hidden, -2)
        rows, columns = upload(hidden.device, torch.arange(len(nodes)).unsqueeze(1), torch.tensor(nodes))
        return hidden[..., rows, columns, :]

    def _drop_pending(self, num_rows: int) -> None:
        super()._drop_pending(num_rows)
        self._tokens: list[Tensor] = []
        self._hidden: list[Tensor] = []

    def _forward(self, tokens: Int[Tensor, "B F"], attention: TreeAttention, is_prefill: bool = False) -> Scores:
        with self._layers.early_only(self._has_head):
            scores = super()._forward(tokens, attention, is_prefill)
        self._hidden.append(self._layers.take_hidden())
        return scores


class _LatePart(_Part):
    """The layers after the exit, which start from `hidden`, the first layers' hidden states."""

    hidden: Float[Tensor, "*streams B F H"]

    @property
    def _model_cache(self) -> Cache:
        """The late layers, at their numbers in the model.

        The first late one stands for every early layer, as a pass reads the cache's length from layer 0.
        """
        layers = self._state.cache.layers
        return Cache(layers=[layers[0]] * self._layers.num_early + layers)

    def _forward(self, tokens: Int[Tensor, "B F"], attention: TreeAttention, is_prefill: bool = False) -> Scores:
        with self._layers.late_only(self.hidden):
            return super()._forward(tokens, attention, is_prefill)
