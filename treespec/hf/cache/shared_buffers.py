"""Buffers of all growing layers in a few tensors, so that accepted nodes move in every layer by two kernels.

Two kernels each for the keys and the values of 30 layers are 120 launches per step: on an accelerator as much time as
a small model's pass, on a CPU a millisecond.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.hf.cache.caches import FilledLayer
from treespec.hf.cache.growing import Buffers, GrowingLayer, Slots, capacity_for, is_writable

MOST_BYTES = 256 << 20
"""The largest shared tensor: while it is filled, the buffers that it replaces exist as well."""


@dataclass(frozen=True, eq=False)
class SharedBuffers:
    """Tensors of which the buffers of all layers are slices."""

    tensors: Sequence[Float[Tensor, "N B G capacity d"]]
    order: Sequence[int]
    """Which of all slices holds the first layer's keys, its values, the second one's keys, and so on."""

    def hold(self, layers: Sequence[GrowingLayer]) -> bool:
        """Whether what these layers hold, and nothing else, is in these buffers and may be written to."""
        return (len(self.order) == 2 * len(layers) and all(map(is_writable, self.tensors))) and all(
            layer.is_in_buffers and layer.buffers.shared is self for layer in cast(Any, layers)
        )

    def slots(self, start: int, count: int) -> Iterator[Slots]:
        """Some slots by layer: all views at once, as one by one they take longer than what they are for."""
        found = [states for tensor in self.tensors for states in tensor.narrow(-2, start, count).unbind()]
        return zip(*([found[number] for number in self.order[first::2]] for first in (0, 1)), strict=True)

    def give(self, layers: Sequence[GrowingLayer]) -> None:
        """Let every layer hold as many slots as before, the first of its slices."""
        for layer, slices in zip(layers, self.slots(0, self.tensors[0].shape[-2]), strict=True):
            layer.buffers = Buffers(*slices, self)
            layer.hold(layer.buffers.slots(0, layer.get_seq_length()))


def stacked_states(layers: Sequence[FilledLayer]) -> list[Float[Tensor, "N B G capacity d"]]:
    """Tensors whose slices are all keys and values of these layers; growing ones are laid together first."""
    growing, others = _by_kind(layers)
    shared = _laid_together(growing).tensors if growing else ()
    for layer in others:
        if not is_writable(layer.keys):  # Filled in inference mode, which has ended.
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
    return [*shared, *(states.unsqueeze(0) for layer in others for states in (layer.keys, layer.values))]


def make_room(layers: Sequence[FilledLayer], num_slots: int) -> None:
    """Let growing layers have room for this many slots, and expect an update that fills them."""
    growing, _ = _by_kind(layers)
    if growing:
        slots, start = _laid_together(growing, num_slots).slots, growing[0].get_seq_length()
        for layer, *expected in zip(growing, slots(start, num_slots - start), slots(0, num_slots), strict=True):
            layer.expected = expected


def cut_growing(layers: Sequence[FilledLayer], end: int) -> Sequence[FilledLayer]:
    """Drop the slots of growing layers from `end` on, by views: they are written to again. Returns the other layers."""
    growing, others = _by_kind(layers)
    if growing and growing[0].get_seq_length() > end:
        for layer, held in zip(growing, _laid_together(growing).slots(0, end), strict=True):
            layer.hold(held)
    return others


def select_rows(layers: Sequence[FilledLayer], rows: Mapping[torch.device, Int[Tensor, " R"]]) -> None:
    """Keep these rows, in their order; the index is given on every device."""
    growing, others = _by_kind(layers)
    if growing:
        old = _laid_together(growing)
        chosen = [states.index_select(1, rows[states.device]) for states in old.tensors]
        SharedBuffers(chosen, old.order).give(growing)
    for layer in others:
        layer.keys = layer.keys.index_select(0, rows[layer.keys.device])
        layer.values = layer.values.index_select(0, rows[layer.values.device])


def _by_kind(layers: Sequence[FilledLayer]) -> tuple[list[GrowingLayer], list[FilledLayer]]:
    """Growing layers, whose buffers can be shared, and others; gradients need tensors that nothing is written to."""
    free: list[Any] = [layer for layer in layers if not (layer.keys.requires_grad or layer.values.requires_grad)]
    growing = [layer for layer in free if isinstance(layer, GrowingLayer)]
    others = [layer for layer in layers if layer not in growing] if len(growing) < len(layers) else []
    return growing, others


def _laid_together(layers: Sequence[GrowingLayer], least_slots: int = 0) -> SharedBuffers:
    """The buffers that these layers share, of at least this many slots; new ones where some layer is elsewhere."""
    shared = layers[0].buffers.shared if layers[0].buffers else None
    if isinstance(shared, SharedBuffers) and shared.hold(layers) and least_slots <= shared.tensors[0].shape[-2]:
        return shared
    held = [cast(Tensor, states) for layer in layers for states in (layer.keys, layer.values)]
    parts, tensors = list(_alike(held)), []
    for part in parts:
        *rows, num_slots, size = held[part[0]].shape
        tensors.append(held[part[0]].new_empty(len(part), *rows, capacity_for(max(num_slots, least_slots)), size))
        torch.stack([held[number] for number in part], out=tensors[-1].narrow(-2, 0, num_slots))
    order = [*chain(*parts)]
    shared = SharedBuffers(tensors, sorted(range(len(order)), key=order.__getitem__))
    shared.give(layers)
    return shared


def _alike(held: Sequence[Float[Tensor, "..."]]) -> Iterator[Sequence[int]]:
    """The numbers of states that can share a tensor: of one shape, not too large."""
    kinds: dict[Any, list[int]] = {}
    for number, states in enumerate(held):
        kinds.setdefault((states.shape, states.dtype, states.device), []).append(number)
    for (shape, dtype, _), numbers in kinds.items():
        most = max(MOST_BYTES // (shape.numel() * dtype.itemsize), 1)
        yield from (numbers[start : start + most] for start in range(0, len(numbers), most))
