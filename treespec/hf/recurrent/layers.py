"""`StateLayer`: a cache layer whose state a tree pass reads, and leaves as it is until a commit.

Outside of tree passes it is transformers' own: a prompt's pass updates the state in place. In a tree pass a model's
layer finds no state, so that it computes its tokens as one chunk; the functions that replace its convolution and its
recurrence there (`operators.py`) read the state here, and leave here what a commit needs of the nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from treespec.errors import UnsupportedModelError
from treespec.hf.cache.caches import DummyLayer
from treespec.hf.cache.growing import GrowingLayer
from treespec.hf.introspect import ModelFacts
from treespec.hf.recurrent.nodes import Paths, TreeNodes, along


class ScoredNodes(Protocol):
    """A recurrence's data on the pending nodes, kept for the commit."""

    def folded(self, state: Float[Tensor, "B ..."] | None, paths: Paths) -> Float[Tensor, "B ..."]:
        """The state after the paths' nodes; None: they begin a text."""
        ...

    def select_rows(self, rows: Int[Tensor, " R"]) -> ScoredNodes:
        """Only these rows, in this order."""
        ...


Scan = Callable[[TreeNodes, Tensor | None, Any], tuple[Tensor, ScoredNodes]]
"""A recurrence over nodes: gets the state [B, ...] before the root (None: they begin a text) and what it kept of the
earlier pending nodes (None: there are none), returns what it computes of the new ones and what it keeps of all."""


@dataclass
class TreePass:
    """A pass over nodes, and the layer that it is in: the one whose convolution inputs came last."""

    nodes: TreeNodes
    layer: StateLayer | None = None

    def scan(self, run: Scan, num_axes: int) -> Tensor:
        """See `StateLayer.scan`."""
        assert self.layer is not None
        return self.layer.scan(run, num_axes)


class StateLayer(LinearAttentionLayer):
    """Cached convolution inputs [B, channels, held], and a state [B, ...], of several recurrences [B, _, ...]."""

    _layer_type = None  # transformers would let the class stand in for its own everywhere.

    def __init__(self, number_of_states: int = 1, **kwargs: Any) -> None:
        super().__init__(number_of_states=number_of_states, **kwargs)
        self._has_states: dict[int, bool] = {}
        self._kept: list[dict[int, Tensor | None]] = []
        self._drop_nodes()

    def begin(self, tree_pass: TreePass) -> None:
        """Begin a pass over nodes, which lasts until `end`."""
        self._pass, self._num_scans = tree_pass, 0
        self._has_states = self.has_previous_state
        self.has_previous_state = dict.fromkeys(self._has_states, False)

    def end(self) -> None:
        self._pass, self.has_previous_state = None, self._has_states

    def keep(self) -> None:
        """Keep the present states for `take_back`: the model's own step, which comes next, updates states in place."""
        self._kept = [dict(states) for states in self._states]
        for states in self._states:
            states.update({number: None if state is None else state.clone() for number, state in states.items()})

    def take_back(self, is_taken_back: Sequence[bool]) -> None:
        """Give these rows the states that they had before the step, if any were kept; the others have theirs."""
        for states, before in zip(self._states, self._kept, strict=False) if any(is_taken_back) else ():
            for number, state in states.items():
                if state is not None:
                    chosen = torch.tensor(is_taken_back, device=state.device).reshape(-1, *[1] * (state.ndim - 1))
                    states[number] = torch.where(chosen, cast(Tensor, before[number]), state)
        self._kept = []

    @property
    def kept_of_nodes(self) -> list[Any]:
        """Inputs of convolutions, and `ScoredNodes`, of the pending nodes."""
        return [*self._inputs.values(), *self._scans]

    @property
    def _states(self) -> list[dict[int, Tensor | None]]:
        return [self.conv_states, self.recurrent_states]

    def update_conv_state(
        self,
        conv_states: Float[Tensor, "B channels F"],
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Float[Tensor, "B channels _"]:
        """Cached inputs of a convolution, then new ones; in a tree pass those of all pending nodes."""
        size = conv_kernel_size
        if self._pass is None:
            return super().update_conv_state(conv_states, state_idx, conv_kernel_size=size, **kwargs)
        self._pass.layer, num_old = self, self._pass.nodes.num_old
        if not self.is_conv_states_initialized[state_idx]:
            self.lazy_initialization(conv_states=conv_states, state_idx=state_idx, conv_kernel_size=size)
        if num_old:
            conv_states = torch.cat([self._inputs[state_idx][..., :num_old], conv_states], -1)
        self._inputs[state_idx] = conv_states
        return torch.cat([cast(Tensor, self.conv_states[state_idx]), conv_states], -1)

    def update_recurrent_state(
        self, recurrent_states: Float[Tensor, "B ..."], state_idx: int = 0, **kwargs: Any
    ) -> Float[Tensor, "B ..."]:
        """Keep a state; a tree pass keeps the one before, and notes only how many axes there are."""
        if self._pass is None:
            return super().update_recurrent_state(recurrent_states, state_idx, **kwargs)
        self._num_axes = recurrent_states.ndim
        return recurrent_states

    def scan(self, run: Scan, num_axes: int) -> Tensor:
        """Run a recurrence, whose state has `num_axes` axes, over the new nodes: its outputs for them."""
        nodes, number = cast(TreePass, self._pass).nodes, self._num_scans
        self._scan_axes = self._num_axes = num_axes
        state = self.recurrent_states[0] if self._has_states[0] else None
        if state is not None and state.ndim > num_axes:
            state = state[:, number]
        result, kept = run(nodes, state, self._scans[number] if nodes.num_old else None)
        self._scans[number : number + 1] = [kept]
        self._num_scans += 1
        return result

    def commit(self, paths: Paths) -> None:
        """Let the states be those after the paths' nodes, and drop all nodes."""
        if any(paths.lengths):
            for number, inputs in self._inputs.items():
                held = cast(Tensor, self.conv_states[number])
                self.conv_states[number] = _shifted(held, inputs, paths.to(inputs.device))
            if self._scans:
                state = self._folded(paths)
                if not self.is_recurrent_states_initialized[0]:
                    self.lazy_initialization(recurrent_states=state)
                # Not in place: the old one may be of inference mode, or a caller's.
                self.recurrent_states[0] = state.to(cast(Tensor, self.recurrent_states[0]).dtype)
            self.has_previous_state |= dict.fromkeys([*self._inputs, *([0] if self._scans else [])], True)
        self._drop_nodes()

    def select_rows(self, rows: Int[Tensor, " R"]) -> None:
        """Keep only these rows, in this order."""
        for states in (*self._states, *self._kept, self._inputs):
            for number, state in states.items():
                if state is not None:
                    states[number] = state.index_select(0, rows.to(state.device))
        self._scans = [nodes.select_rows(rows) for nodes in self._scans]

    def _folded(self, paths: Paths) -> Float[Tensor, "B ..."]:
        state = self.recurrent_states[0] if self.has_previous_state[0] else None
        if self._num_axes == self._scan_axes:
            return self._scans[0].folded(state, paths)
        states = [None] * len(self._scans) if state is None else state.unbind(1)
        return torch.stack([nodes.folded(old, paths) for nodes, old in zip(self._scans, states, strict=True)], 1)

    def _drop_nodes(self) -> None:
        self._pass: TreePass | None = None
        self._num_scans = self._num_axes = self._scan_axes = 0
        self._inputs: dict[int, Tensor] = {}
        self._scans: list[ScoredNodes] = []


class HybridLayer(StateLayer, LinearAttentionAndFullAttentionLayer, GrowingLayer):
    """A state, and keys and values, of a layer that has both."""


_LAYERS: dict[type, Callable[[int], Any]] = {
    DummyLayer: lambda _: DummyLayer(),  # First: it is a `DynamicLayer` before transformers 5.23.
    LinearAttentionLayer: StateLayer,
    LinearAttentionAndFullAttentionLayer: HybridLayer,
    LinearAttentionAndSlidingWindowAttentionLayer: HybridLayer,
    DynamicLayer: lambda _: GrowingLayer(),
    DynamicSlidingWindowLayer: lambda _: GrowingLayer(),
}


def state_cache(config: PreTrainedConfig) -> Cache:
    """An empty cache whose attention layers keep all tokens.

    Raises `UnsupportedModelError`: a layer is of an unknown kind.
    """
    cache = DynamicCache(config=config)
    unknown = {type(layer).__name__ for layer in cache.layers if type(layer) not in _LAYERS}
    if unknown:
        raise UnsupportedModelError(f"nodes cannot be removed from cache layers of the kinds {sorted(unknown)}")
    types = getattr(config.get_text_config(decoder=True), "layer_types", None) or [""] * len(cache.layers)
    # Before transformers 5.23 layers that need no cache have one for states.
    cache.layers = [
        DummyLayer() if kind in ("mlp", "moe") else _LAYERS[type(layer)](getattr(layer, "number_of_states", 1))
        for layer, kind in zip(cache.layers, types, strict=True)
    ]
    return cache


class OwnStates(ABC):
    """How the modules of a model that keeps its states elsewhere find them in a cache of `StateLayer`s.

    Attributes:
        calls: the names that the modules use.
        is_continued: whether the model's own passes can continue from such a cache.
        reads_padding: whether padding before a text changes its states, as it does in the model's own passes.
    """

    calls: frozenset[str]
    is_continued = reads_padding = False

    def __init__(self, facts: ModelFacts, modules: Sequence[nn.Module]) -> None:
        self._model, self._modules = facts.model, modules

    def cache(self) -> Cache:
        """An empty cache."""
        return state_cache(self._model.config)

    @abstractmethod
    def running(self, layers: Sequence[StateLayer], tree_pass: TreePass | None) -> AbstractContextManager[None]:
        """Inside this thread's passes score nodes, or read a prompt (None), from and to these layers."""


def _shifted(
    held: Float[Tensor, "B channels held"], inputs: Float[Tensor, "B channels N"], paths: Paths
) -> Float[Tensor, "B channels held"]:
    """The last inputs of a convolution after the paths' nodes."""
    texts = torch.cat([held, along(inputs, paths.nodes, -1)], -1)
    columns = torch.arange(held.shape[-1], device=held.device) + paths.is_node.sum(1, keepdim=True)
    return along(texts, columns, -1)
