"""`GrowingLayer`: a growing cache layer that writes new tokens after the old ones instead of copying all of them.

transformers' `DynamicLayer` concatenates: every pass copies the whole cache. Here keys and values are the first slots
of larger tensors, the layer's buffer, so that a pass copies its own nodes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

LEAST_SPARE = 32
"""A full buffer grows by a quarter, at least by this many slots: on average a slot is copied five times at most."""
Slots: TypeAlias = tuple[Float[Tensor, "B G F d"], Float[Tensor, "B G F _"]]
"""Keys and values of some slots."""


class Buffers(NamedTuple):
    """A layer's buffers for keys and values [B, G, capacity, d]."""

    keys: Float[Tensor, "B G capacity d"]
    values: Float[Tensor, "B G capacity _"]
    shared: object = None
    """The `SharedBuffers` that these buffers, and those of a cache's other layers, are slices of; None: its own."""

    def slots(self, start: int, count: int) -> Slots:
        return self.keys.narrow(-2, start, count), self.values.narrow(-2, start, count)

    def fit(self, keys: Float[Tensor, "B G F d"], values: Float[Tensor, "B G F _"], num_slots: int) -> bool:
        """Whether there is room for this many slots, and these states may be written to them."""
        is_large = num_slots <= self.keys.shape[2] and _are_alike(keys, self.keys) and _are_alike(values, self.values)
        return is_large and is_writable(self.keys) and is_writable(self.values)


class GrowingLayer(DynamicLayer):
    """A `DynamicLayer` whose `keys` and `values` [B, G, S, d] are views of the first S slots of a buffer.

    Code that replaces `keys` or `values` (to select rows, to cut, to move to another device) need not know the buffer:
    the next update copies them into a new one.
    """

    _layer_type = None  # transformers would let the class stand in for DynamicLayer everywhere.

    buffers: Buffers | None = None
    _known: tuple[Any, Any] = None, None
    """Keys and values as `hold` was given them."""
    expected: Sequence[Slots] | None = None
    """Slots in the buffers that the next update, if of as many tokens, writes to, and all that are held then."""

    def update(
        self, key_states: Float[Tensor, "B G F d"], value_states: Float[Tensor, "B G F _"], *args: Any, **kwargs: Any
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S _"]]:
        """Append the states of F tokens; returns those of all S slots. Keys and values may differ in size."""
        wants_gradient = torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad)
        # A later pass would write where autograd has saved views of the buffer.
        if wants_gradient or torch.compiler.is_compiling():
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        shapes = [key_states.shape, value_states.shape]
        if self.expected is None or not self.is_in_buffers or [new.shape for new in self.expected[0]] != shapes:
            self.expected = self._next_slots(key_states, value_states)
        slots, held = self.expected
        for new, states in zip(slots, (key_states, value_states), strict=True):
            new.copy_(states)
        return self.hold(held)

    def _next_slots(self, keys: Float[Tensor, "B G F d"], values: Float[Tensor, "B G F _"]) -> tuple[Slots, Slots]:
        """Slots for these states, in new buffers where there is no room, and all that are held with them."""
        held, count = cast(Tensor, self.keys), keys.shape[-2]
        start = held.shape[-2] if held.ndim == keys.ndim else 0  # Empty ones have one axis.
        buffers = self.buffers if self.is_in_buffers else None
        if buffers is None or not buffers.fit(keys, values, start + count):
            self.buffers = buffers = self._new_buffers(keys, values, start)
        return buffers.slots(start, count), buffers.slots(0, start + count)

    @property
    def is_in_buffers(self) -> bool:
        """Whether keys and values are those that `hold` was given, the first slots of the layer's buffers."""
        return self.buffers is not None and self.keys is self._known[0] and self.values is self._known[1]

    def hold(self, slots: Slots) -> Slots:
        """Hold these, the first slots of the layer's buffers."""
        self.keys, self.values = self._known = slots
        self.expected = None
        return slots

    def _new_buffers(self, keys: Float[Tensor, "B G F d"], values: Float[Tensor, "B G F _"], num_held: int) -> Buffers:
        """Buffers for what is held, which is copied there, and for states like these after it."""
        num_slots = capacity_for(num_held + keys.shape[-2])
        buffers = Buffers(*(like.new_empty(*like.shape[:2], num_slots, like.shape[-1]) for like in (keys, values)))
        if num_held:
            for new, old in zip(buffers.slots(0, num_held), (self.keys, self.values), strict=True):
                new.copy_(cast(Tensor, old))
        return buffers

    def reset(self) -> None:
        super().reset()
        self.buffers, self._known, self.expected = None, (None, None), None

    def __copy__(self) -> GrowingLayer:
        """A layer that holds the same tokens and allocates its own buffer when it grows."""
        twin = GrowingLayer()
        vars(twin).update(_without_buffers(self))  # Sharing buffers, both would write to the same slots.
        return twin


def use_growing_layers(cache: Cache) -> None:
    """Let a cache's `DynamicLayer`s, and those that it adds, be `GrowingLayer`s that hold the same tokens."""
    _replace_layers(cache, DynamicLayer, GrowingLayer)


def use_dynamic_layers(cache: Cache) -> None:
    """Undo `use_growing_layers`."""
    _replace_layers(cache, GrowingLayer, DynamicLayer)


def _replace_layers(cache: Cache, old: type[DynamicLayer], new: type[DynamicLayer]) -> None:
    if isinstance(cache, DynamicCache) and cache.layer_class_to_replicate is old:
        cache.layer_class_to_replicate = new
    for number, layer in enumerate(cache.layers):
        if type(layer) is old:
            cache.layers[number] = new()
            vars(cache.layers[number]).update(_without_buffers(layer))


def _without_buffers(layer: object) -> dict[str, Any]:
    """A layer's attributes without those of `GrowingLayer`."""
    return {name: value for name, value in vars(layer).items() if name not in ("buffers", "_known", "expected")}


def capacity_for(num_slots: int) -> int:
    """The slots of a new buffer."""
    return num_slots + max(num_slots // 4, LEAST_SPARE)


def _are_alike(states: Float[Tensor, "..."], buffer: Float[Tensor, "B G capacity d"]) -> bool:
    """Whether these differ in the number of slots alone."""
    shape, other = states.shape, buffer.shape
    return len(shape) == 4 and shape[0] == other[0] and shape[1] == other[1] and shape[3] == other[3]


def is_writable(buffer: Float[Tensor, "..."]) -> bool:
    """PyTorch forbids writing into tensors of inference mode outside of it."""
    return torch.is_inference_mode_enabled() or not buffer.is_inference()
