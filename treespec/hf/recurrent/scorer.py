"""`StateScorer`: models whose layers keep states, or states besides keys and values, as `CausalScorer`s of trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from treespec.errors import UnsupportedModelError
from treespec.hf.attention.mask import AttentionLayout, CachedSlots, TreeAttention, attention_layout
from treespec.hf.cache.growing import GrowingLayer
from treespec.hf.introspect import ModelFacts, model_facts, uncompiled
from treespec.hf.models.prompt import PromptInputs, ReadPrompt, position_offsets, without_last_token
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.hf.recurrent.layers import StateLayer, TreePass, state_cache
from treespec.hf.recurrent.nodes import Paths, TreeNodes
from treespec.hf.recurrent.operators import modelling_files, running
from treespec.hf.recurrent.own_states import own_states
from treespec.protocols import HiddenStates
from treespec.tree import PADDING_PARENT
from treespec.tree.transfer import upload

_STATES: dict[str, Any] = dict.fromkeys(("linear_attention", "conv", "moe", "mlp"))
_ATTENTIONS: dict[str, str | None] = _STATES | {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
"""The attention within layers of types that have a state, or nothing to cache."""


class StateScorer(TreeScorer):
    """A model whose layers keep states, some or all of them, as a `CausalScorer` of trees; all rows share passes.

    Attention layers are served as by `TreeScorer`. Layers with states read the state before the root, once per row, and
    compute the tree as one chunk. A commit makes the accepted path's state from what the pass has left, without
    another pass.

    Args:
        hidden_layers: see `TreeScorer`.
        prompt: with images or sounds, what the first `prefill` reads in place of its ids, all but the last token.
        max_cache_len: must be None, there are no static caches of states.

    Raises `UnsupportedModelError`: a layer of an unknown kind keeps a state, or a row of the prompt ends in an image or
    a sound.
    """

    _skips_padding = False
    _has_attention = True

    def __init__(
        self,
        model: PreTrainedModel | ModelFacts,
        *,
        hidden_layers: Sequence[int] = (),
        prompt: PromptInputs | None = None,
        max_cache_len: None = None,
    ) -> None:
        facts = uncompiled(model_facts(model))
        if prompt is not None and not prompt.ends_in_text(facts.model.config):
            raise UnsupportedModelError(f"{facts.name} cannot continue this prompt: a prompt must end in text")
        super().__init__(facts, hidden_layers=hidden_layers, prompt=prompt, max_cache_len=max_cache_len)
        self._own = own_states(facts)
        self._whole, self._ends_prompt = self._new_cache(), True
        self._files = modelling_files(facts, self._whole) if self._own is None else []

    @property
    def cache(self) -> Cache:
        """The transformers cache, which holds states too."""
        return self._whole

    @property
    def returned_cache(self) -> Cache | None:
        """What plain passes can continue from; None: the model keeps its states elsewhere."""
        return self._whole if self._own is None or self._own.is_continued else None

    @torch.no_grad()
    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> HiddenStates:
        """See `TreeScorer`; columns that are padding in every row are computed, as plain `generate` does."""
        if ids.shape[1] != 1 or bool(mask.all()) or self._prompt is not None:
            return super().prefill(ids, mask)
        # transformers masks no padding in passes over one token.
        super().prefill(ids[:, :0], mask[:, :0])
        scores = self.extend(ids.cpu(), torch.where(mask.cpu(), -1, PADDING_PARENT))
        self.commit([(0,) if is_token else () for is_token in mask[:, 0].tolist()])
        self._ends_prompt = True
        return scores.hidden_states

    @torch.no_grad()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        super().commit(paths)
        self._ends_prompt = self._ends_prompt and not any(paths)
        found = Paths.of(paths, self.device)
        for layer in self._layers:
            layer.commit(found)

    @torch.no_grad()
    def select_rows(self, rows: Sequence[int]) -> None:
        super().select_rows(rows)
        index = upload(self.device, torch.tensor(list(rows), dtype=torch.int64, device="cpu"))[0]
        for layer in self._layers:
            layer.select_rows(index)

    @property
    def _layers(self) -> list[StateLayer]:
        return [layer for layer in self._whole.layers if isinstance(layer, StateLayer)]

    def _layout_of(self, config: PreTrainedConfig) -> AttentionLayout:
        """The layout of the attention layers."""
        types = getattr(config, "layer_types", None)
        if types is None:
            return attention_layout(config)
        attentions = {kind for kind in (_ATTENTIONS.get(kind, kind) for kind in types) if kind is not None}
        self._has_attention = bool(attentions)
        layout = attention_layout(config, attentions or {"full_attention"})
        if len(layout.reaches) > 1:
            return layout
        # One kind of attention takes one mask, whatever the model calls its layers.
        (reach,) = layout.reaches.values()
        return replace(layout, reaches={None: reach})

    def _new_cache(self) -> Cache:
        return state_cache(self.facts.model.config) if self._own is None else self._own.cache()

    def _empty_cache(self, num_rows: int) -> Cache:
        """One for the keys and values alone: `SlotCache` cuts these back, states are committed."""
        self._whole, self._ends_prompt = self._new_cache(), True
        return Cache(layers=[layer for layer in self._whole.layers if isinstance(layer, GrowingLayer)])

    def _attend(self, slots: CachedSlots, parents: Int[Tensor, "B N"], num_new: int) -> TreeAttention:
        attention = super()._attend(slots, parents, num_new)
        if not self._has_attention:
            return replace(attention, mask=None)
        return replace(attention, mask=_STATES | attention.mask) if isinstance(attention.mask, dict) else attention

    @contextmanager
    def _prepared(
        self, tokens: Int[Tensor, "B F"], attention: TreeAttention, is_prefill: bool = False
    ) -> Iterator[tuple[dict[str, Any], Int[Tensor, "*rows B F"]]]:
        with ExitStack() as stack:
            prepared = stack.enter_context(super()._prepared(tokens, attention, is_prefill))
            started = None
            if not is_prefill:
                started = TreePass(TreeNodes(self._parents, tokens.shape[1], self.device, self._ends_prompt))
                stack.enter_context(running(self._files, self._layers, started))
            if self._own is not None:
                stack.enter_context(self._own.running(self._layers, started))
            yield prepared

    def _read_prompt(self, prompt: PromptInputs, mask: Bool[Tensor, "B P"], num_cached: int) -> HiddenStates:
        """Read a prompt without its last token, the first root: no token leaves a state again."""
        inputs = prompt.model_inputs(self.facts.model, self.cache, num_cached)
        lengths = mask.sum(1)
        with self._rope.apart():
            scores = self._run(
                self.facts.model, without_last_token(inputs, prompt.ids.shape[1]), has_last_logits_only=True
            )
        offsets = position_offsets(inputs.get("position_ids"), lengths.to(self.device))
        self._read = ReadPrompt(offsets, None)
        self._rope.start(self._read.shifted(lengths.unsqueeze(1)))
        self._state.num_pending -= 1
        return scores.hidden_states
