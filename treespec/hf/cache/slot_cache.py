"""`SlotCache`: a cache and the record of its slots; and how a cache is cut back to accepted paths.

A pass writes whole trees, of which a commit keeps one path per row. A cache's slots hold the committed tokens first,
then the pending nodes.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import StaticLayer

from treespec.errors import ContextFullError, TreespecError
from treespec.hf.attention.mask import CachedSlots
from treespec.hf.cache.caches import FilledLayer, check_cache, filled_layers
from treespec.hf.cache.shared_buffers import cut_growing, make_room, select_rows, stacked_states
from treespec.tree import pad_rows
from treespec.tree.transfer import upload

Paths = Sequence[Sequence[int]]


class SlotCache:
    """A cache of S committed slots, and which of them hold which row's tokens.

    Args:
        slot_mask: True where a slot holds a committed token, on the model's device.
        lengths: `slot_mask.sum(1)`, known to the host; kept up to date.
        is_compact: close every hole at once, so that rows differ by left padding only: for models whose attention
            depends on slot numbers.
    """

    def __init__(
        self, cache: Cache, slot_mask: Bool[Tensor, "B S"], lengths: list[int], is_compact: bool = False
    ) -> None:
        check_cache(cache)
        self.cache = cache
        self.lengths = lengths
        self.num_pending = 0  # Nodes written since the last commit.
        self._is_compact = is_compact
        sizes = [layer.max_cache_len for layer in cache.layers if type(layer) is StaticLayer]
        self._max_slots = min(sizes, default=None)
        self._device = slot_mask.device
        self._set_slots(slot_mask.cpu())

    @property
    def num_slots(self) -> int:
        return self.slots.mask.shape[1]

    @property
    def num_holes(self) -> int:
        """Slots that repacking would free."""
        return self.num_slots - max(self.lengths)

    def append(self, num_nodes: int) -> None:
        """Make room for nodes that the next pass writes. Raises `ContextFullError`: a static cache is full."""
        if self._max_slots is not None:
            if self.num_holes and self.num_slots + self.num_pending + num_nodes > self._max_slots:
                self._repack()
            free = self._max_slots - self.num_slots - self.num_pending
            if num_nodes > free:
                raise ContextFullError(
                    f"the static cache of {self._max_slots} slots has {free} free for {num_nodes} more nodes: "
                    "max_cache_len must be the length of the prompt and the new tokens, plus a tree's nodes"
                )
        self.num_pending += num_nodes
        if self._max_slots is None:
            make_room(filled_layers(self.cache), self.num_slots + self.num_pending)

    def commit(self, paths: Paths) -> None:
        """Keep the accepted paths and drop the other pending nodes; raises as `commit_cache` does."""
        check_paths(paths, len(self.lengths), self.num_pending)  # Before anything moves.
        keep_paths(filled_layers(self.cache), self.num_slots, paths)
        self.num_pending = 0
        is_ragged = len({len(path) for path in paths}) > 1
        self.lengths = [length + len(path) for length, path in zip(self.lengths, paths, strict=True)]
        fresh = path_mask(paths, self.slots.mask.device)
        self._set_slots(torch.cat([self.slots.mask, fresh], dim=1))
        if self._is_repacking_worth_it or (self._is_compact and is_ragged):
            self._repack()

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        index, layers = torch.tensor(list(rows), device="cpu"), filled_layers(self.cache)
        select_rows(layers, _copies(index, layers))
        for layer in layers:
            if isinstance(layer, StaticLayer):
                layer.batch_size = len(rows)
        self.lengths = [self.lengths[row] for row in rows]
        self._set_slots(self.slots.mask.index_select(0, index))
        # A single row without holes needs no mask for chains.
        if self.num_holes and (len(rows) == 1 or self._is_compact or self._is_repacking_worth_it):
            self._repack()

    @property
    def _is_repacking_worth_it(self) -> bool:
        """Every pass attends to the holes too: copying the cache once pays when an eighth of its slots are holes."""
        return self._max_slots is None and self.num_holes * 8 > self.num_slots  # Static: all slots are read anyway.

    def _set_slots(self, slot_mask: Bool[Tensor, "B S"]) -> None:
        is_contiguous = min(self.lengths) == slot_mask.shape[1]  # So lengths are set before masks.
        self.slots = CachedSlots(slot_mask, is_contiguous, self._max_slots, self._device)

    def _repack(self) -> None:
        """Move every row's tokens together, the last ones aligned, and cut the slots that no row needs."""
        mask = self.slots.mask
        end = self.num_slots
        # Holes sort before tokens, which keep their order; what stays of them is left padding of shorter rows.
        order = mask.long().argsort(dim=1, stable=True)[:, self.num_holes :]
        # These move along, as their ids count from the end of the committed slots.
        pending = torch.arange(end, end + self.num_pending, device="cpu").expand(mask.shape[0], -1)
        _move_to_front(filled_layers(self.cache), 0, torch.cat([order, pending], dim=1))
        self._set_slots(mask.gather(1, order))


def commit_cache(cache: Cache, slot_mask: Bool[Tensor, "B S"], paths: Paths) -> Bool[Tensor, "B S_new"]:
    """Keep the accepted paths of the trees scored last and drop their other nodes, in place.

    Args:
        cache: as filled by the forward passes; its layers keep all tokens. The slots after the S hold the nodes.
        slot_mask: the slots that held committed tokens before, see `tree_attention_mask`.
        paths: node ids per row in the order of the text, usually `verdict.path`.

    Returns:
        The slots that hold committed tokens now; rows with a shorter path have holes at the end.

    Raises:
        UnsupportedModelError: see `check_cache`.
        TreespecError: a path names a node that is not in the cache, or there is not one path per row.
    """
    check_cache(cache)
    num_slots = slot_mask.shape[1]
    layers = filled_layers(cache)
    num_pending = int(cache.get_seq_length()) - num_slots if layers else 0
    check_paths(paths, slot_mask.shape[0], num_pending)
    keep_paths(layers, num_slots, paths)
    return torch.cat([slot_mask, path_mask(paths, slot_mask.device)], dim=1)


def check_paths(paths: Paths, num_rows: int, num_pending: int) -> None:
    """Raise `TreespecError` unless there is one path per row, of pending nodes only."""
    if len(paths) != num_rows:
        raise TreespecError(f"expected one path for each of {num_rows} rows, got {len(paths)}")
    for row, path in enumerate(paths):
        if any(not 0 <= node < num_pending for node in path):
            raise TreespecError(f"row {row}: path {list(path)} names a node outside the {num_pending} scored ones")


def path_mask(paths: Paths, device: torch.device) -> Bool[Tensor, "B L"]:
    """True where a row's path has a node."""
    longest = max(len(path) for path in paths)
    return torch.tensor([[i < len(path) for i in range(longest)] for path in paths], dtype=torch.bool, device=device)


def keep_paths(layers: Sequence[FilledLayer], num_slots: int, paths: Paths) -> None:
    """Move the accepted nodes of the pending region, which starts at slot `num_slots`, to its front; cut the rest."""
    if all(list(path) == list(range(len(path))) for path in paths):  # All are there already.
        _cut(layers, num_slots + max(len(path) for path in paths))
        return
    # Shorter paths are filled up with their row's node 0, which the mask hides.
    _move_to_front(layers, num_slots, torch.tensor(pad_rows(paths, 0), device="cpu") + num_slots)


def _move_to_front(layers: Sequence[FilledLayer], start: int, index: Int[Tensor, "B L"]) -> None:
    """Copy the slots `index` to `start` and the L - 1 slots after it; cut what follows."""
    copies = _copies(index, layers)
    for states in stacked_states(layers):
        source = _take(states, copies[states.device])  # A copy first: the slots may overlap.
        states.narrow(-2, start, index.shape[1]).copy_(source)
    _cut(layers, start + index.shape[1])


def _copies(index: Int[Tensor, "..."], layers: Sequence[FilledLayer]) -> dict[torch.device, Tensor]:
    """An index from the host by device: layers of one cache may be on several."""
    return {device: upload(device, index)[0] for device in {layer.keys.device for layer in layers}}


def _take(states: Float[Tensor, "N B G S d"], index: Int[Tensor, "B L"]) -> Float[Tensor, "N B G L d"]:
    """A copy of the slots `index`, which is where the states are."""
    if states.shape[1] == 1:
        return states.index_select(-2, index[0])  # Copies whole slots; `gather` reads an index per number.
    expanded = index[:, None, :, None].expand(states.shape[0], -1, states.shape[2], -1, states.shape[4])
    return states.gather(-2, expanded)


def _cut(layers: Sequence[FilledLayer], end: int) -> None:
    """Drop the slots from `end` on."""
    if layers and layers[0].keys.shape[-2] <= end:  # A plain step kept all.
        return
    for layer in cut_growing(layers, end):
        if isinstance(layer, StaticLayer):
            layer.cumulative_length.fill_(end)  # In place: compiled passes have recorded its address.
        elif layer.keys.shape[-2] > end:
            layer.keys = layer.keys.narrow(-2, 0, end)
            layer.values = layer.values.narrow(-2, 0, end)
