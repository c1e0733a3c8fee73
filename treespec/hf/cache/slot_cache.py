"""`SlotCache`: a cache and the record of its slots: which hold committed tokens and which are holes."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import StaticLayer

from treespec.errors import ContextFullError
from treespec.hf.attention.mask import CachedSlots
from treespec.hf.cache.caches import check_cache, filled_layers
from treespec.hf.cache.compaction import Paths, check_paths, keep_paths, keep_rows, move_to_front, path_mask


class SlotCache:
    """A cache of S committed slots, and which of them hold which row's tokens, known to the host and to the device.

    Args:
        cache: see `check_cache`.
        slot_mask: True where a slot holds a committed token.
        lengths: `slot_mask.sum(1)`, known to the host.
        is_compact: close every hole at once, so that rows differ by left padding only: for models whose attention
            depends on slot numbers.

    Attributes:
        cache, lengths: as given, kept up to date.
        slots: the committed slots.
        num_pending: nodes written since the last commit.
    """

    def __init__(
        self, cache: Cache, slot_mask: Bool[Tensor, "B S"], lengths: list[int], is_compact: bool = False
    ) -> None:
        check_cache(cache)
        self.cache, self.lengths, self.num_pending = cache, lengths, 0
        self._is_compact = is_compact
        sizes = [layer.max_cache_len for layer in cache.layers if type(layer) is StaticLayer]
        self._max_slots = min(sizes, default=None)
        self._set_slots(slot_mask)

    @property
    def num_slots(self) -> int:
        return self.slots.mask.shape[1]

    @property
    def num_holes(self) -> int:
        """Slots that repacking would free."""
        return self.num_slots - max(self.lengths)

    def append(self, num_nodes: int) -> None:
        """Make room for nodes that the next pass writes; `ContextFullError` where a static cache has none."""
        if self._max_slots is not None:
            if self.num_holes and self.num_slots + self.num_pending + num_nodes > self._max_slots:
                self._repack()
            free = self._max_slots - self.num_slots - self.num_pending
            if num_nodes > free:
                raise ContextFullError(
                    f"the static cache of {self._max_slots} slots has {free} free for {num_nodes} more "
                    "nodes: max_cache_len must be the length of the prompt and the new tokens, plus a tree's nodes"
                )
        self.num_pending += num_nodes

    def commit(self, paths: Paths) -> None:
        """Keep the accepted paths and drop the other pending nodes; raises as `commit_cache` does."""
        check_paths(paths, len(self.lengths), self.num_pending)
        keep_paths(filled_layers(self.cache), self.num_slots, paths)
        self.num_pending = 0
        is_ragged = len({len(path) for path in paths}) > 1
        self.lengths = [length + len(path) for length, path in zip(self.lengths, paths, strict=True)]
        fresh = path_mask(paths, self.slots.mask.device)
        self._set_slots(torch.cat([self.slots.mask, fresh], dim=1))
        # A growing cache is copied by every pass anyway; one copy more pays when it saves attention to an eighth.
        is_worth_it = self._max_slots is None and self.num_holes * 8 > self.num_slots
        if is_worth_it or (self._is_compact and is_ragged):
            self._repack()

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        index = torch.tensor(list(rows), device=self.slots.mask.device)
        keep_rows(filled_layers(self.cache), index)
        self.lengths = [self.lengths[row] for row in rows]
        self._set_slots(self.slots.mask.index_select(0, index))
        if self.num_holes:
            self._repack()

    def _set_slots(self, slot_mask: Bool[Tensor, "B S"]) -> None:
        is_contiguous = min(self.lengths) == slot_mask.shape[1]
        self.slots = CachedSlots(slot_mask, is_contiguous, self._max_slots)

    def _repack(self) -> None:
        """Move every row's tokens together, the last ones aligned, and cut the slots that no row needs."""
        mask, end = self.slots.mask, self.num_slots
        order = mask.long().argsort(dim=1, stable=True)[:, self.num_holes :]
        pending = torch.arange(end, end + self.num_pending, device=mask.device).expand(mask.shape[0], -1)
        index = torch.cat([order, pending], dim=1)
        for layer in filled_layers(self.cache):
            move_to_front(layer, 0, index)
        self._set_slots(mask.gather(1, order))
