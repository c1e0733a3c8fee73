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

from treespec.hf.attention.mask import AttentionLayout, CachedSlots, TreeAttention, attention_layout
from treespec.hf.cache.growing import GrowingLayer
from treespec.hf.cache.slot_cache import SlotCache
from treespec.hf.introspect import ModelFacts, model_facts, uncompiled
from treespec.hf.models.prompt import PromptInputs
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.hf.recurrent.distance_bias import DistanceBiases
from treespec.hf.recurrent.layers import OwnStates, StateLayer, TreePass, state_cache
from treespec.hf.recurrent.lightning import LightningStates
from treespec.hf.recurrent.nodes import Paths, TreeNodes
from treespec.hf.recurrent.operators import calls, modelling_files, running
from treespec.hf.recurrent.rg_lru import GatedUnitStates
from treespec.hf.recurrent.rwkv import WeightedKeyValueStates
from treespec.protocols import Scores
from treespec.tree import PADDING_PARENT
from treespec.tree.transfer import upload

_STATES: dict[str, Any] = dict.fromkeys(("linear_attention", "conv", "moe", "mlp"))
_ATTENTIONS: dict[str, str | None] = _STATES | {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
"""The attention within layers of types that have a state, or nothing to cache."""
KINDS: tuple[type[OwnStates], ...] = (LightningStates, GatedUnitStates, WeightedKeyValueStates)
"""Models that keep their states elsewhere than in a transformers cache of the common kind, found by what they call."""


def own_states(facts: ModelFacts) -> OwnStates | None:
    """None: the model keeps its states in its cache."""
    for kind in KINDS:
        modules = [module for module in facts.modules.values() if kind.calls <= calls(type(module))[0]]
        if modules:
            return kind(facts, modules)
    return None


class StateScorer(TreeScorer):
    """A model whose layers keep states, some or all of them, as a `CausalScorer` of trees; all rows share passes.

    Attention layers are served as by `TreeScorer`. Layers with states read the state before the root, once per row, and
    compute the tree as one chunk. A commit makes the accepted path's state from what the pass has left, without
    another pass.

    A pass over one node per row is the model's own step, so that packages for fast kernels compute it; the states
    before it are kept until the commit. Nodes that follow it before the commit, a draft model's, read those after it.

    Args:
        hidden_layers: see `TreeScorer`.
        prompt: with images or sounds, what the first `prefill` reads in place of its ids.
        max_cache_len: must be None, there are no static caches of states.

    Raises `UnsupportedModelError`: a layer of an unknown kind keeps a state, or a row of the prompt ends in an image or
    a sound.
    """

    _skips_padding = False
    _has_attention = True
    _step: Int[Tensor, "B N"] | None
    """The tokens of all pending nodes, if node 0 is a step, whose states have gone on."""

    def __init__(
        self,
        model: PreTrainedModel | ModelFacts,
        *,
        hidden_layers: Sequence[int] = (),
        prompt: PromptInputs | None = None,
        max_cache_len: None = None,
    ) -> None:
        facts = uncompiled(model_facts(model))
        if prompt is not None:
            prompt.check_ends_in_text(facts.model.config, facts.name)
        super().__init__(facts, hidden_layers=hidden_layers, prompt=prompt, max_cache_len=max_cache_len)
        self._own = own_states(facts)
        self._takes_steps, self._step = self._own is None, None
        self._whole = self._new_cache()
        self._files = modelling_files(facts, self._whole) if self._own is None else []
        self._biases = DistanceBiases(facts)
        if self._biases and self._layout is not None:
            self._layout = replace(self._layout, needs_key_positions=True)

    @property
    def cache(self) -> Cache:
        """The transformers cache, which holds states too."""
        return self._whole

    @property
    def returned_cache(self) -> Cache | None:
        """The cache from which plain passes can continue; None: the model keeps its states elsewhere."""
        return self._whole if self._own is None or self._own.is_continued else None

    @property
    def kept_of_nodes(self) -> list[Any]:
        """Data on the pending nodes that layers with states keep until the commit: tensors in lists and tuples."""
        return [layer.kept_of_nodes for layer in self._layers]

    @torch.no_grad()
    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> Scores:
        """See `TreeScorer`; columns that are padding in every row are computed, as plain `generate` does."""
        self._num_padding = ids.shape[1] - mask.sum(1, keepdim=True)
        reads_padding = self._own is not None and self._own.reads_padding
        if ids.shape[1] != 1 or bool(mask.all()) or self._prompt is not None or reads_padding:
            return super().prefill(ids, mask)
        # Models that mask padding do so in passes over several tokens alone.
        super().prefill(ids[:, :0], mask[:, :0])
        scores = self.extend(ids.cpu(), torch.where(mask.cpu(), -1, PADDING_PARENT))
        self.commit([(0,) if is_token else () for is_token in mask[:, 0].tolist()])
        return scores

    @torch.no_grad()
    def extend(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"]) -> Scores:
        """See `TreeScorer`."""
        if self._step is None:
            return super().extend(tokens, parents)
        self._check_nodes(tokens, parents, len(self._step))
        pending = torch.cat([self._step.to(tokens.device), tokens], 1)
        if bool((parents == -1).any()):
            return self._extend_without_step(pending, torch.cat([self._parents, parents], 1))
        scores = super().extend(tokens, parents)
        self._step = pending
        return scores

    @torch.no_grad()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        super().commit(paths)
        has_step, self._step = self._step is not None, None
        # The states have read a step, node 0, already; the layers' nodes count from the one after it.
        found = Paths.of([[node - 1 for node in path[1:]] for path in paths] if has_step else paths, self.device)
        for layer in self._layers:
            layer.commit(found)
            layer.take_back([has_step and not path for path in paths])

    @torch.no_grad()
    def select_rows(self, rows: Sequence[int]) -> None:
        super().select_rows(rows)
        index = upload(self.device, torch.tensor(list(rows), dtype=torch.int64, device="cpu"))[0]
        for layer in self._layers:
            layer.select_rows(index)
        self._num_padding = self._num_padding.index_select(0, index.to(self._num_padding.device))
        self._step = None if self._step is None else self._step.index_select(0, index.to(self._step.device))

    def _extend_without_step(self, tokens: Int[Tensor, "B N"], parents: Int[Tensor, "B N"]) -> Scores:
        """Score all pending nodes again, the new ones last: some follow the states before the step, which are gone."""
        nothing, num_old, self._takes_steps = [()] * len(tokens), self._parents.shape[1], False
        self.commit(nothing)
        try:
            scores = super().extend(tokens, parents)
        except BaseException:
            self.commit(nothing)
            try:
                super().extend(tokens[:, :num_old], parents[:, :num_old])  # They are pending as before.
            except RuntimeError:
                self.commit(nothing)
            raise
        states = {layer: states[:, num_old:] for layer, states in scores.hidden_states.items()}
        return Scores(scores.logits[:, num_old:], states)

    def _nodes(self, num_new: int) -> TreeNodes:
        """The pending nodes, without a step: the states that they read are those after it."""
        parents = self._parents
        if self._step is not None:
            parents = torch.where(parents == PADDING_PARENT, PADDING_PARENT, parents - 1)[:, 1:]
        return TreeNodes(parents, num_new, self.device)

    def _is_step(self) -> bool:
        """Every row has one pending node."""
        return self._takes_steps and self._parents.shape[1] == 1 and bool((self._parents == -1).all())

    @contextmanager
    def _stepping(self, tokens: Int[Tensor, "B 1"]) -> Iterator[None]:
        """Inside layers go on by themselves; after an error they have the states of before."""
        self._step = tokens
        try:
            for layer in self._layers:
                layer.keep()
            yield
        except BaseException:
            self._step = None
            for layer in self._layers:
                layer.take_back([True] * len(tokens))
            raise

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
        self._whole, self._step = self._new_cache(), None
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
                stack.enter_context(self._biases.running(attention, self._num_padding))
            if not is_prefill and self._is_step():
                stack.enter_context(self._stepping(tokens))
            elif not is_prefill:
                started = TreePass(self._nodes(tokens.shape[1]))
                stack.enter_context(running(self._files, self._layers, started))
            if self._own is not None:
                stack.enter_context(self._own.running(self._layers, started))
            yield prepared

    def _read_prompt(self, prompt: PromptInputs, mask: Bool[Tensor, "B P"], num_cached: int) -> Scores:
        """Read a whole prompt: no token leaves a state again."""
        scores = self._run_prompt(prompt, mask.sum(1) - 1, num_cached)
        self._slots = SlotCache(self._state.cache, mask, mask.sum(1).tolist(), self._is_compact)
        return scores._replace(logits=scores.logits[:, -1:])
