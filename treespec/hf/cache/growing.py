"""`GrowingLayer`: a growing cache layer that writes new tokens behind the old ones instead of copying all of them.

transformers' `DynamicLayer` concatenates: every pass copies the whole cache. Here keys and values are the first slots
of larger tensors, the layer's room, so that a pass copies its own nodes only.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

LEAST_SPARE = 32
"""A full room grows by a quarter, at least by this many slots: on average a slot is copied five times at most."""


class Rooms(NamedTuple):
    """A layer's rooms for keys and values [B, G, num_room, d]."""

    keys: Float[Tensor, "B G num_room d"]
    values: Float[Tensor, "B G num_room _"]
    shared: object = None
    """The `SharedRooms` that these rooms, and those of a cache's other layers, are slices of; None: its own."""

    def hold(self, layer: DynamicLayer) -> bool:
        """Whether what the layer holds are the first slots of these rooms."""
        return is_start(cast(Tensor, layer.keys), self.keys) and is_start(cast(Tensor, layer.values), self.values)


class GrowingLayer(DynamicLayer):
    """A `DynamicLayer` whose `keys` and `values` [B, G, S, d] are views of the first S slots of a room.

    Code that replaces `keys` or `values` (to select rows, to cut, to move to another device) need not know of the room:
    it is used as long as they are still its first slots; otherwise the next update copies them into a new one.
    """

    _layer_type = None  # transformers would let the class stand in for DynamicLayer everywhere.

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rooms: Rooms | None = None

    def update(
        self, key_states: Float[Tensor, "B G F d"], value_states: Float[Tensor, "B G F _"], *args: Any, **kwargs: Any
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S _"]]:
        """Append the states of F tokens; returns those of all S slots. Keys and values may differ in size."""
        wants_gradient = torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad)
        if wants_gradient or torch.compiler.is_compiling():
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old_keys, old_values = self.rooms[:2] if self.rooms else (None, None)
        self.keys, keys = _append(cast(Tensor, self.keys), old_keys, key_states)
        self.values, values = _append(cast(Tensor, self.values), old_values, value_states)
        if keys is not old_keys or values is not old_values:
            self.rooms = Rooms(keys, values)
        return self.keys, self.values

    def reset(self) -> None:
        super().reset()
        self.rooms = None

    def __copy__(self) -> GrowingLayer:
        """A layer that holds the same tokens and makes a room of its own when it grows."""
        twin = GrowingLayer()
        vars(twin).update(vars(self))
        twin.rooms = None
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
            state = {name: value for name, value in vars(layer).items() if name != "rooms"}
            cache.layers[number] = new()
            vars(cache.layers[number]).update(state)


def _append(
    held: Float[Tensor, "..."], room: Float[Tensor, "..."] | None, fresh: Float[Tensor, "B G F d"]
) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G num_room d"]]:
    """Write states behind those held, if any; returns all of them and the room they lie in."""
    start = held.shape[-2] if held.ndim == fresh.ndim else 0
    end = start + fresh.shape[-2]
    if room is None or end > room.shape[-2] or not _can_append(held, room, fresh):
        room = fresh.new_empty(*fresh.shape[:-2], room_for(end), fresh.shape[-1])
        if start:
            room.narrow(-2, 0, start).copy_(held)
    room.narrow(-2, start, fresh.shape[-2]).copy_(fresh)
    return room.narrow(-2, 0, end), room


def room_for(num_slots: int) -> int:
    """The slots of a new room."""
    return num_slots + max(num_slots // 4, LEAST_SPARE)


def _can_append(held: Float[Tensor, "B G S d"], room: Float[Tensor, "..."], fresh: Float[Tensor, "B G F d"]) -> bool:
    """Whether what is held are the first slots of the room, and the new states fit behind them."""
    return is_start(held, room) and _are_alike(fresh.shape, room.shape) and is_writable(room)


def is_start(held: Float[Tensor, "..."], room: Float[Tensor, "B G num_room d"]) -> bool:
    """Whether states are the first slots of a room, of all its rows and heads."""
    is_alike = _are_alike(held.shape, room.shape) and held.dtype == room.dtype
    return is_alike and held.data_ptr() == room.data_ptr() and held.stride() == room.stride()


def _are_alike(shape: torch.Size, other: torch.Size) -> bool:
    """Whether these shapes differ in the number of slots alone."""
    # Every layer's update asks: without slices of shapes it takes half the time.
    is_same_rank = len(shape) == len(other) == 4
    return is_same_rank and shape[0] == other[0] and shape[1] == other[1] and shape[3] == other[3]


def is_writable(room: Float[Tensor, "..."]) -> bool:
    """PyTorch forbids writing into tensors of inference mode outside of it."""
    return torch.is_inference_mode_enabled() or not room.is_inference()
