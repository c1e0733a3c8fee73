"""Cutting caches back to accepted paths: a pass writes whole trees, of which a commit keeps one path per row.

A cache's slots hold the committed tokens first, then the pending nodes. Axis letters: B rows, S committed slots, L the
longest accepted path.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import StaticLayer

from treespec.errors import TreespecError
from treespec.hf.cache.caches import FilledLayer, check_cache, filled_layers

Paths = Sequence[Sequence[int]]


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
    longest = max(len(path) for path in paths)
    if all(list(path) == list(range(len(path))) for path in paths):  # All are there already.
        for layer in layers:
            _cut(layer, num_slots + longest)
        return
    padded = [[*path, *[0] * (longest - len(path))] for path in paths]
    index = torch.tensor(padded, device=layers[0].keys.device) + num_slots if layers else torch.empty(0)
    for layer in layers:
        move_to_front(layer, num_slots, index)


def move_to_front(layer: FilledLayer, start: int, index: Int[Tensor, "B L"]) -> None:
    """Copy the slots `index` to `start` and the L - 1 slots after it; cut what follows."""
    for states in (layer.keys, layer.values):
        source = _take(states, index.to(states.device))
        states.narrow(-2, start, index.shape[1]).copy_(source)
    _cut(layer, start + index.shape[1])


def keep_rows(layers: Sequence[FilledLayer], rows: Int[Tensor, " B"]) -> None:
    """Keep only these rows, in this order."""
    for layer in layers:
        layer.keys, layer.values = (
            states.index_select(0, rows.to(states.device)) for states in (layer.keys, layer.values)
        )
        if isinstance(layer, StaticLayer):
            layer.batch_size = layer.keys.shape[0]


def _take(states: Float[Tensor, "B heads S size"], index: Int[Tensor, "B L"]) -> Float[Tensor, "B heads L size"]:
    """A copy of the slots `index`."""
    if states.shape[0] == 1:
        return states.index_select(-2, index[0])
    expanded = index[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(-2, expanded)


def _cut(layer: FilledLayer, end: int) -> None:
    """Drop the slots from `end` on. A view is enough: the next update copies it and frees the old storage."""
    if isinstance(layer, StaticLayer):
        layer.cumulative_length.fill_(end)
        return
    layer.keys = layer.keys.narrow(-2, 0, end)
    layer.values = layer.values.narrow(-2, 0, end)
