"""Key-value caches of draft heads: one for drafting, one for training."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from treespec.tree.transfer import upload

FIRST_SLOTS = 256


class DraftingCache:
    """A `KeyValueCache` whose rows fill their slots from the front, each at its own pace, without holes.

    Pending nodes are after the longest row until `drop_pending`; keys never move. Before each pass, `begin_commit` or
    `begin_pending` says where its keys go. The first pass says what a layer's keys and values are like.

    Axis letters: e the size of a value (d is a key's).

    Attributes:
        lengths: committed slots per row.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._capacity = FIRST_SLOTS
        self.lengths = [0] * num_rows
        self._num_pending = 0
        self._end = 0
        self._start: int | None = None
        self._scattered: tuple[Int[Tensor, "M"], Int[Tensor, "M"], Int[Tensor, "M"]] | None = None

    @property
    def num_committed(self) -> int:
        """The slots of the longest row."""
        return max(self.lengths, default=0)

    def begin_commit(self, counts: Sequence[int], num_columns: int, *inputs: Shaped[Tensor, "..."]) -> list[Tensor]:
        """The next pass commits the first `counts[b]` of its columns to row b.

        Returns `inputs`, what the pass reads from the host, on the keys' device: one copy takes all there.
        """
        self._num_pending = 0
        ends = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self._reserve(max(ends))
        if len(set(self.lengths)) == 1 and set(counts) == {num_columns}:
            self._start, self._scattered = self.lengths[0], None
            copies = upload(self.device, *inputs)
        else:
            triples = [(b, c, self.lengths[b] + c) for b, count in enumerate(counts) for c in range(count)]
            index = torch.tensor(triples, dtype=torch.int64, device="cpu").view(-1, 3).T
            *copies, (rows, columns, slots) = upload(self.device, *inputs, index)
            self._start, self._scattered = None, (rows, columns, slots)
        self.lengths = ends
        self._end = max(ends)
        return copies

    def begin_pending(self, num_nodes: int) -> None:
        """The next pass adds nodes that may be dropped."""
        self._start, self._scattered = self.num_committed + self._num_pending, None
        self._num_pending += num_nodes
        self._end = self._start + num_nodes
        self._reserve(self._end)

    def drop_pending(self) -> None:
        self._num_pending = 0

    def extend(
        self, layer: int, keys: Float[Tensor, "B G F d"], values: Float[Tensor, "B G F e"]
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S e"]]:
        """See `KeyValueCache`."""
        if layer not in self._buffers:
            self._buffers[layer] = self._zeros_like(keys), self._zeros_like(values)
        for buffer, fresh in zip(self._buffers[layer], (keys, values), strict=True):
            if self._scattered is not None:
                rows, columns, slots = self._scattered
                buffer[rows, :, slots] = fresh[rows, :, columns]
            else:
                buffer[:, :, self._start : self._end] = fresh
        stored_keys, stored_values = self._buffers[layer]
        return stored_keys[:, :, : self._end], stored_values[:, :, : self._end]

    def select_rows(self, rows: Sequence[int]) -> None:
        (index,) = upload(self.device, torch.tensor(list(rows), dtype=torch.int64, device="cpu"))
        self._change(lambda buffer: buffer[index])
        self.lengths = [self.lengths[row] for row in rows]

    def add_rows(self, num_rows: int) -> None:
        """Empty rows after the others."""
        self._change(lambda buffer: torch.nn.functional.pad(buffer, (0, 0, 0, 0, 0, 0, 0, num_rows)))
        self.lengths += [0] * num_rows

    def copy_row(self, row: int) -> Self:
        """A cache of this row alone."""
        alone = copy(self)
        alone.select_rows([row])
        return alone

    def replace_row(self, row: int, alone: Self) -> None:
        """Take over a cache of `copy_row` that has grown since."""
        (self.lengths[row],) = alone.lengths
        self._reserve(self.lengths[row])
        for layer, others in alone._buffers.items():
            if layer not in self._buffers:
                self._buffers[layer] = self._zeros_like(others[0]), self._zeros_like(others[1])
            for buffer, other in zip(self._buffers[layer], others, strict=True):
                buffer[row, :, : self.lengths[row]] = other[0, :, : self.lengths[row]]

    def _reserve(self, num_slots: int) -> None:
        if num_slots > self._capacity:
            added = max(num_slots, 2 * self._capacity) - self._capacity
            self._capacity += added
            self._change(lambda buffer: torch.nn.functional.pad(buffer, (0, 0, 0, added)))

    def _zeros_like(self, fresh: Float[Tensor, "M G F d"]) -> Float[Tensor, "B G S d"]:
        """Zeros, not empty: masked values are multiplied by zero, which NaN would survive."""
        return fresh.new_zeros(len(self.lengths), fresh.shape[1], self._capacity, fresh.shape[3])

    def _change(self, change: Callable[..., Shaped[Tensor, "..."]]) -> None:
        self._buffers = {layer: (change(keys), change(values)) for layer, (keys, values) in self._buffers.items()}


class TrainingCache:
    """A `KeyValueCache` that appends pass after pass and lets gradients through."""

    def __init__(self) -> None:
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(
        self, layer: int, keys: Float[Tensor, "B G F d"], values: Float[Tensor, "B G F e"]
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S e"]]:
        """See `KeyValueCache`."""
        if layer in self._stored:
            keys, values = (torch.cat(pair, 2) for pair in zip(self._stored[layer], (keys, values), strict=True))
        self._stored[layer] = keys, values
        return keys, values
