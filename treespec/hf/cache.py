"""Caches that trees are written to and cut back to paths from.

Every layer keeps all tokens, sliding-window layers too (their mask enforces the window): a layer that forgets tokens
could not take a rejected node back. A cache's slots hold the committed tokens first and the pending nodes behind them.
Axis letters: B rows, S committed slots, M pending nodes, L longest accepted path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    CacheLayerMixin,
    DummyLayer,
    DynamicLayer,
    LinearAttentionCacheLayerMixin,
    StaticLayer,
)

from treespec.errors import ContextFullError, TreespecError, UnsupportedModelError
from treespec.hf.mask import CachedSlots

Paths = Sequence[Sequence[int]]


class FilledLayer(Protocol):
    """A cache layer that holds states [B, H, S, D] of keys and of values."""

    keys: Tensor
    values: Tensor


def new_cache(num_layers: int, max_cache_len: int | None = None) -> Cache:
    """An empty cache that can take trees back, for any attention model.

    Args:
        num_layers: of the model (`config.num_hidden_layers`).
        max_cache_len: slots of a static cache (fixed memory, as torch.compile wants it); None for a growing one.
    """
    if max_cache_len is None:
        return DynamicCache()
    return Cache(layers=[StaticLayer(max_cache_len=max_cache_len) for _ in range(num_layers)])


def check_cache(cache: Cache) -> None:
    """Raise `UnsupportedModelError` unless accepted nodes can be kept, and rejected ones dropped, in every layer."""
    if not isinstance(cache, Cache):
        raise UnsupportedModelError(f"expected a transformers Cache, got {type(cache).__name__}")
    if getattr(cache, "offloading", False):
        raise UnsupportedModelError("an offloaded cache cannot be cut back to a path: pass cache_implementation=None")
    for number, layer in enumerate(cache.layers):
        if type(layer) not in (DynamicLayer, StaticLayer, DummyLayer):
            raise UnsupportedModelError(
                f"cache layer {number} is a {type(layer).__name__}, from which rejected nodes cannot be taken back "
                "(it is quantised, forgets tokens or keeps a state): pass no cache, or one made by treespec.new_cache()"
            )


def is_filled(cache: Cache) -> bool:
    """Whether a cache holds anything; empty ones, as `generate` prepares them, need not be used."""
    layers = getattr(cache, "layers", None)
    if not isinstance(cache, Cache) or layers is None:
        raise UnsupportedModelError(f"expected a transformers Cache as past_key_values, got {type(cache).__name__}")
    return any(_is_layer_filled(layer) for layer in layers)


def _is_layer_filled(layer: CacheLayerMixin | LinearAttentionCacheLayerMixin | DummyLayer) -> bool:
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        return any(layer.has_previous_state.values())
    return isinstance(layer, CacheLayerMixin) and layer.is_initialized and int(layer.get_seq_length()) > 0


def twin_cache(cache: Cache) -> Cache:
    """A cache that starts with what `cache` holds and leaves it as it is; growing layers share it until they grow."""
    check_cache(cache)
    twin = copy(cache)
    twin.layers = [copy(layer) for layer in cache.layers]
    for layer in twin.layers:
        if isinstance(layer, StaticLayer) and layer.is_initialized:
            layer.keys, layer.values = cast(Tensor, layer.keys).clone(), cast(Tensor, layer.values).clone()
            layer.cumulative_length = layer.cumulative_length.clone()
    return twin


def cache_shape(cache: Cache) -> tuple[int, int]:
    """Rows and tokens of a filled cache."""
    return _filled_layers(cache)[0].keys.shape[0], int(cache.get_seq_length())


def commit_cache(cache: Cache, slot_mask: Tensor, paths: Paths) -> Tensor:
    """Keep the accepted paths of the trees scored last and drop their other nodes, in place.

    The cache's last slots, from `slot_mask.shape[1]` on, hold the trees' nodes in the trees' order. The rows on a path
    move to the front of that region and the rest is cut off.

    Args:
        cache: as filled by the forward passes; its layers keep all tokens.
        slot_mask: bool [B, S]: what was committed before, see `tree_attention_mask`.
        paths: node ids per row in the order of the text, usually `verdict.path`.

    Returns:
        bool [B, S + L]: the slots that hold committed tokens now; rows with a shorter path have holes at the end.

    Raises:
        UnsupportedModelError: see `check_cache`.
        TreespecError: a path names a node that is not in the cache, or there is not one path per row.
    """
    check_cache(cache)
    num_slots = slot_mask.shape[1]
    layers = _filled_layers(cache)
    num_pending = int(cache.get_seq_length()) - num_slots if layers else 0
    _check_paths(paths, slot_mask.shape[0], num_pending)
    _keep_paths(layers, num_slots, paths)
    return torch.cat([slot_mask, _path_mask(paths, slot_mask.device)], dim=1)


@torch.no_grad()
def cache_error(model: PreTrainedModel, cache: Cache, slot_mask: Tensor, rows: Sequence[Tensor]) -> float:
    """An integrity check: how far the committed slots are from the states of a fresh pass over the same tokens.

    Args:
        model: whose cache it is.
        cache: after a commit.
        slot_mask: bool [B, S], the committed slots.
        rows: per row its committed tokens, int64 [length].

    Returns:
        The largest difference of any key or value; infinite when a row has not as many slots as tokens.
    """
    worst = 0.0
    for row, tokens in enumerate(rows):
        slots = slot_mask[row].nonzero().squeeze(1)
        if len(slots) != len(tokens):
            return float("inf")
        if not len(tokens):
            continue
        fresh = model(input_ids=tokens.unsqueeze(0), past_key_values=DynamicCache(), use_cache=True).past_key_values
        for ours, theirs in zip(_filled_layers(cache), _filled_layers(fresh), strict=True):
            for states, expected in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
                kept = states[row].index_select(-2, slots.to(states.device))
                worst = max(worst, float((kept - expected[0]).abs().max()))
    return worst


class SlotCache:
    """A cache and the knowledge which of its slots hold which row's tokens, on the host and on the device.

    Attributes:
        cache: the transformers cache to pass to the model.
        slots: the committed slots.
        lengths: committed tokens per row.
        num_pending: nodes written since the last commit.
    """

    def __init__(self, cache: Cache, slot_mask: Tensor, lengths: list[int], is_compact: bool = False) -> None:
        """Describe a cache that holds S committed slots.

        Args:
            cache: see `check_cache`.
            slot_mask: bool [B, S].
            lengths: `slot_mask.sum(1)`, known to the host.
            is_compact: close every hole at once, so that rows differ by left padding only. For models that read
                meaning into slot numbers.
        """
        check_cache(cache)
        self.cache = cache
        self.lengths = lengths
        self.num_pending = 0
        self._is_compact = is_compact
        sizes = [layer.max_cache_len for layer in cache.layers if type(layer) is StaticLayer]
        self._max_slots = min(sizes, default=None)
        self._set_slots(slot_mask)

    @property
    def num_slots(self) -> int:
        """S."""
        return self.slots.mask.shape[1]

    @property
    def num_holes(self) -> int:
        """Slots that repacking would free."""
        return self.num_slots - max(self.lengths)

    def append(self, num_nodes: int) -> None:
        """Make room for nodes that the next forward pass writes.

        Raises:
            ContextFullError: a static cache has not enough free slots left, even without its holes.
        """
        if self._max_slots is not None:
            if self.num_holes and self.num_slots + self.num_pending + num_nodes > self._max_slots:
                self._repack()
            free = self._max_slots - self.num_slots - self.num_pending
            if num_nodes > free:
                raise ContextFullError(
                    f"the static cache of {self._max_slots} slots has {free} free, {num_nodes} more nodes were to be "
                    "scored: give max_cache_len the prompt's length, plus the new tokens, plus the nodes of a tree"
                )
        self.num_pending += num_nodes

    def commit(self, paths: Paths) -> None:
        """Keep the accepted paths and drop the other pending nodes; raises as `commit_cache` does."""
        _check_paths(paths, len(self.lengths), self.num_pending)
        _keep_paths(_filled_layers(self.cache), self.num_slots, paths)
        self.num_pending = 0
        is_ragged = len({len(path) for path in paths}) > 1
        self.lengths = [length + len(path) for length, path in zip(self.lengths, paths, strict=True)]
        fresh = _path_mask(paths, self.slots.mask.device)
        self._set_slots(torch.cat([self.slots.mask, fresh], dim=1))
        # A growing cache is copied by every pass anyway; one copy more pays when it saves attention to an eighth.
        is_worth_it = self._max_slots is None and self.num_holes * 8 > self.num_slots
        if is_worth_it or (self._is_compact and is_ragged):
            self._repack()

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        index = torch.tensor(list(rows), device=self.slots.mask.device)
        _rewrite(_filled_layers(self.cache), lambda states: states.index_select(0, index.to(states.device)))
        self.lengths = [self.lengths[row] for row in rows]
        self._set_slots(self.slots.mask.index_select(0, index))
        if self.num_holes:
            self._repack()

    def _set_slots(self, slot_mask: Tensor) -> None:
        is_contiguous = min(self.lengths) == slot_mask.shape[1]
        self.slots = CachedSlots(slot_mask, is_contiguous, self._max_slots)

    def _repack(self) -> None:
        """Move every row's tokens together, the last ones aligned, and cut the slots that no row needs."""
        mask, end = self.slots.mask, self.num_slots
        order = mask.long().argsort(dim=1, stable=True)[:, self.num_holes :]
        pending = torch.arange(end, end + self.num_pending, device=mask.device).expand(mask.shape[0], -1)
        index = torch.cat([order, pending], dim=1)
        for layer in _filled_layers(self.cache):
            _write_front(layer, 0, index)
        self._set_slots(mask.gather(1, order))


def _check_paths(paths: Paths, num_rows: int, num_pending: int) -> None:
    if len(paths) != num_rows:
        raise TreespecError(f"expected one path for each of {num_rows} rows, got {len(paths)}")
    for row, path in enumerate(paths):
        if any(not 0 <= node < num_pending for node in path):
            raise TreespecError(f"row {row}: path {list(path)} names a node outside the {num_pending} scored ones")


def _filled_layers(cache: Cache) -> list[FilledLayer]:
    """The layers that store anything: models that share keys and values between layers leave some empty."""
    layers = cast(list[Any], cache.layers)
    return [layer for layer in layers if layer.is_initialized and layer.keys is not None]


def _path_mask(paths: Paths, device: torch.device) -> Tensor:
    """bool [B, L]: True where a row's path has a node."""
    longest = max(len(path) for path in paths)
    return torch.tensor([[i < len(path) for i in range(longest)] for path in paths], dtype=torch.bool, device=device)


def _keep_paths(layers: Sequence[FilledLayer], num_slots: int, paths: Paths) -> None:
    """Move the accepted nodes of the pending region, which starts at slot `num_slots`, to its front; cut the rest."""
    longest = max(len(path) for path in paths)
    is_in_place = all(list(path) == list(range(len(path))) for path in paths)
    if is_in_place:
        for layer in layers:
            _cut(layer, num_slots + longest)
        return
    padded = [[*path, *[0] * (longest - len(path))] for path in paths]
    index = torch.tensor(padded, device=layers[0].keys.device) + num_slots if layers else torch.empty(0)
    for layer in layers:
        _write_front(layer, num_slots, index)


def _write_front(layer: FilledLayer, start: int, index: Tensor) -> None:
    """Copy the slots `index` int64 [B, L] to `start` and the L - 1 slots behind it; cut what follows."""
    for states in (layer.keys, layer.values):
        source = _take(states, index.to(states.device))
        states.narrow(-2, start, index.shape[1]).copy_(source)
    _cut(layer, start + index.shape[1])


def _take(states: Tensor, index: Tensor) -> Tensor:
    """Gather slots: states [B, H, S, D], index int64 [B, L] to a new [B, H, L, D]."""
    if states.shape[0] == 1:
        return states.index_select(-2, index[0])
    expanded = index[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(-2, expanded)


def _cut(layer: FilledLayer, end: int) -> None:
    """Forget the slots from `end` on. A view is enough: the next update copies it and frees the old storage."""
    if isinstance(layer, StaticLayer):
        layer.cumulative_length.fill_(end)
        return
    layer.keys = layer.keys.narrow(-2, 0, end)
    layer.values = layer.values.narrow(-2, 0, end)


def _rewrite(layers: Sequence[FilledLayer], change: Callable[[Tensor], Tensor]) -> None:
    for layer in layers:
        layer.keys, layer.values = change(layer.keys), change(layer.values)
        if isinstance(layer, StaticLayer):
            layer.batch_size = layer.keys.shape[0]
