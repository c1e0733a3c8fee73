"""Buffers of all growing layers in a few tensors, so that accepted nodes move in every layer by two kernels.

Two kernels each for the keys and the values of 30 layers are 120 launches per step: on an accelerator as much time as
a small model's pass, on a CPU a millisecond.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.hf.cache.caches import FilledLayer
from treespec.hf.cache.growing import Buffers, GrowingLayer, capacity_for, is_writable

MOST_BYTES = 256 << 20
"""The largest shared tensor: while it is filled, the buffers that it replaces exist as well."""
Part = Sequence[tuple[int, str]]
"""The content of a tensor's slices, in order: a layer's number, and `keys` or `values`."""


@dataclass(frozen=True, eq=False)
class SharedBuffers:
    """Tensors of which the buffers of all layers are slices."""

    tensors: Sequence[Float[Tensor, "N B G capacity d"]]
    parts: Sequence[Part]

    def hold(self, layers: Sequence[GrowingLayer]) -> bool:
        """Whether what these layers hold, and nothing else, is in these buffers and may be written to."""
        is_whole = sum(map(len, self.parts)) == 2 * len(layers) and all(map(is_writable, self.tensors))
        return is_whole and all(
            layer.buffers is not None and layer.buffers.shared is self and layer.is_in_buffers for layer in layers
        )

    def give(self, layers: Sequence[GrowingLayer]) -> None:
        """Let every layer hold as many slots as before, the first of its slices."""
        slices = {
            owner: states
            for part, tensor in zip(self.parts, self.tensors, strict=True)
            for owner, states in zip(part, tensor, strict=True)
        }
        for number, layer in enumerate(layers):
            layer.use(Buffers(slices[number, "keys"], slices[number, "values"], self), layer.get_seq_length())


def stacked_states(layers: Sequence[FilledLayer]) -> list[Float[Tensor, "N B G capacity d"]]:
    """Tensors whose slices are all keys and values of these layers; growing ones are laid together first."""
    growing, others = _by_kind(layers)
    shared = _laid_together(growing).tensors if growing else ()
    for layer in others:
        if not is_writable(layer.keys):  # Filled in inference mode, which has ended.
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
    return [*shared, *(states.unsqueeze(0) for layer in others for states in (layer.keys, layer.values))]


def make_room(layers: Sequence[FilledLayer], num_slots: int) -> None:
    """Let growing layers have room for this many slots: where the first has not, what all hold is copied once."""
    growing, _ = _by_kind(layers)
    if growing and not growing[0].has_room(num_slots):
        _laid_together(growing, num_slots)


def select_rows(layers: Sequence[FilledLayer], rows: Mapping[torch.device, Int[Tensor, " R"]]) -> None:
    """Keep these rows, in their order; the index is given on every device."""
    growing, others = _by_kind(layers)
    if growing:
        old = _laid_together(growing)
        chosen = [states.index_select(1, rows[states.device]) for states in old.tensors]
        SharedBuffers(chosen, old.parts).give(growing)
    for layer in others:
        layer.keys = layer.keys.index_select(0, rows[layer.keys.device])
        layer.values = layer.values.index_select(0, rows[layer.values.device])


def _by_kind(layers: Sequence[FilledLayer]) -> tuple[list[GrowingLayer], list[FilledLayer]]:
    """Growing layers, whose buffers can be shared, and others; gradients need tensors that nothing is written to."""
    growing: list[GrowingLayer] = [
        layer for layer in layers if isinstance(layer, GrowingLayer) and not _needs_gradient(cast(Any, layer))
    ]
    others = [layer for layer in layers if layer not in growing] if len(growing) < len(layers) else []
    return growing, others


def _laid_together(layers: Sequence[GrowingLayer], least_slots: int = 0) -> SharedBuffers:
    """The buffers that these layers share, of at least this many slots; new ones where some layer is elsewhere."""
    shared = layers[0].buffers.shared if layers[0].buffers else None
    if isinstance(shared, SharedBuffers) and shared.hold(layers) and layers[0].has_room(least_slots):
        return shared
    parts, tensors = list(_alike(layers)), []
    for part in parts:
        held = [cast(Tensor, getattr(layers[number], name)) for number, name in part]
        *rows, num_slots, size = held[0].shape
        tensors.append(held[0].new_empty(len(part), *rows, capacity_for(max(num_slots, least_slots)), size))
        torch.stack(held, out=tensors[-1].narrow(-2, 0, num_slots))
    shared = SharedBuffers(tensors, parts)
    shared.give(layers)
    return shared


def _alike(layers: Sequence[GrowingLayer]) -> Iterator[Part]:
    """The keys and values that can share a tensor: of one shape, not too large."""
    kinds: dict[Any, list[tuple[int, str]]] = {}
    for number, name in product(range(len(layers)), ("keys", "values")):
        states = cast(Tensor, getattr(layers[number], name))
        kinds.setdefault((states.shape, states.dtype, states.device), []).append((number, name))
    for (shape, dtype, _), owners in kinds.items():
        most = max(MOST_BYTES // (shape.numel() * dtype.itemsize), 1)
        yield from (owners[start : start + most] for start in range(0, len(owners), most))


def _needs_gradient(layer: FilledLayer) -> bool:
    return layer.keys.requires_grad or layer.values.requires_grad
