"""transformers' caches: which of them trees can use, what they hold, copies and snapshots.

In a cache for trees every layer keeps all tokens, sliding-window layers too (their mask enforces the window): a layer
that drops old tokens could not restore them when nodes are rejected.
"""

from copy import copy
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache, cache_utils
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin, StaticLayer

from treespec.errors import UnsupportedModelError
from treespec.hf.cache.growing import GrowingLayer, use_growing_layers

DummyLayer: Any = getattr(cache_utils, "DummyLayer", DynamicLayer)
"""The layers of those that need no cache; they are ordinary ones, left empty, before transformers 5.23."""
CacheState = list[dict[str, Any]]
"""The attributes of every layer of a cache, see `snapshot`."""


class FilledLayer(Protocol):
    """A cache layer with keys and values; their sizes may differ."""

    keys: Float[Tensor, "B G S d"]
    values: Float[Tensor, "B G S _"]


def new_cache(num_layers: int, max_cache_len: int | None = None) -> Cache:
    """An empty cache from which rejected nodes can be removed, for any attention model of `num_layers` layers.

    With `max_cache_len` a static one of this many slots (fixed memory, as torch.compile needs it), else a growing one.
    """
    if max_cache_len is None:
        cache = DynamicCache()
        use_growing_layers(cache)
        return cache
    return Cache(layers=[StaticLayer(max_cache_len=max_cache_len) for _ in range(num_layers)])


def check_cache(cache: Cache) -> None:
    """Raise `UnsupportedModelError` unless accepted nodes can be kept, and rejected ones dropped, in every layer."""
    if not isinstance(cache, Cache):
        raise UnsupportedModelError(f"expected a transformers Cache, got {type(cache).__name__}")
    if getattr(cache, "offloading", False):
        raise UnsupportedModelError("an offloaded cache cannot be cut back to a path: pass cache_implementation=None")
    for number, layer in enumerate(cache.layers):
        # By type, as transformers' subclasses of these drop tokens or quantise them.
        if type(layer) not in (DynamicLayer, StaticLayer, DummyLayer) and not isinstance(layer, GrowingLayer):
            raise UnsupportedModelError(
                f"cache layer {number} is a {type(layer).__name__}, from which rejected nodes cannot be removed "
                "(it is quantised, drops old tokens or keeps a state): pass no cache, or one of treespec.new_cache()"
            )


def is_filled(cache: Cache) -> bool:
    """Whether a cache holds any token; those that `generate` prepares are empty."""
    layers = getattr(cache, "layers", None)
    if not isinstance(cache, Cache) or layers is None:
        raise UnsupportedModelError(f"expected a transformers Cache, got {type(cache).__name__}")
    return any(_is_layer_filled(layer) for layer in layers)


def _is_layer_filled(layer: Any) -> bool:
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        return any(layer.has_previous_state.values())
    return isinstance(layer, CacheLayerMixin) and layer.is_initialized and int(layer.get_seq_length()) > 0


def prefix_length(cache: Cache, num_rows: int, num_tokens: int) -> int:
    """How many of a prompt's tokens a caller's own cache holds, by the prompt's shape without its last tokens.

    Raises `UnsupportedModelError`: the cache is not one of a prefix of the prompt.
    """
    num_cached_rows, num_cached = cache_shape(cache)
    if num_cached_rows != num_rows or num_cached > num_tokens:
        raise UnsupportedModelError(
            f"the given cache holds {num_cached} tokens of {num_cached_rows} rows, but before the prompt's last tokens "
            f"come {num_tokens} tokens of {num_rows} rows: pass the cache of a prefix of the prompt"
        )
    return num_cached


def twin_cache(cache: Cache) -> Cache:
    """A cache with the same contents that leaves `cache` unchanged; growing layers share tensors until the twin grows.

    Until then `cache` must not be committed to or packed, which moves slots in place.
    """
    check_cache(cache)
    twin = copy(cache)
    twin.layers = [copy(layer) for layer in cache.layers]
    for layer in twin.layers:
        if isinstance(layer, StaticLayer) and layer.is_initialized:
            layer.keys = cast(Tensor, layer.keys).clone()
            layer.values = cast(Tensor, layer.values).clone()
            layer.cumulative_length = layer.cumulative_length.clone()
    return twin


def snapshot(cache: Cache) -> CacheState:
    """The attributes of every layer of a cache by name, for `restore`.

    Keys and values are not copied, because passes replace these tensors or write after them; only a `SlotCache` moves
    slots in place, and must not do so before `restore`. States are updated in place, so they are copied.
    """
    return [{name: _saved(name, value) for name, value in vars(layer).items()} for layer in cache.layers]


def restore(cache: Cache, state: CacheState) -> None:
    """Put a snapshot back into the cache it was taken of. It serves once: later passes write into it."""
    for layer, attributes in zip(cache.layers, state, strict=True):
        vars(layer).clear()
        vars(layer).update(attributes)


def row_cache(cache: Cache, row: int, num_tokens: int) -> Cache:
    """A copy of one row of a cache, without the padding before its last `num_tokens` tokens.

    Raises `UnsupportedModelError`: there is padding in a layer that counts the tokens that it has dropped.
    """
    twin = copy(cache)
    twin.layers = [copy(layer) for layer in cache.layers]
    restore(twin, snapshot(cache))  # Copies of states, which passes update in place.
    twin.reorder_cache(torch.tensor([row], device="cpu"))  # pyright: ignore[reportArgumentType]
    layers: list[Any] = [layer for layer in twin.layers if getattr(layer, "keys", None) is not None]
    for layer in layers:
        if hasattr(layer, "cumulative_length") and int(layer.get_seq_length()) != num_tokens:
            kind = type(layer).__name__
            raise UnsupportedModelError(f"a {kind} cannot leave out padding: give prompts with images one by one")
        start = max(layer.keys.shape[2] - num_tokens, 0)
        layer.keys, layer.values = layer.keys[:, :, start:], layer.values[:, :, start:]
    return twin


def _saved(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if name in ("keys", "values") else value.clone()
    if isinstance(value, dict):
        return {key: _saved("", item) for key, item in value.items()}
    return [_saved("", item) for item in value] if isinstance(value, list) else value


def cache_shape(cache: Cache) -> tuple[int, int]:
    """Rows and tokens of a filled cache."""
    return filled_layers(cache)[0].keys.shape[0], int(cache.get_seq_length())


def filled_layers(cache: Cache) -> list[FilledLayer]:
    """The layers that store anything: models that share keys and values between layers leave some empty."""
    layers = cast(list[Any], cache.layers)
    return [layer for layer in layers if layer.is_initialized and layer.keys is not None]
