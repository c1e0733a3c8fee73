"""Tree attention masks: with them one forward pass scores every node of a token tree.

A node attends the row's committed tokens, its ancestors and itself. Sliding windows and chunks count *positions*
(committed tokens before the node, plus its depth), never slots: siblings are side by side in the cache but have the
same position.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import PreTrainedConfig

from treespec.errors import InvalidTreeError, UnsupportedModelError
from treespec.hf.attention.folded import plain_implementation
from treespec.tree import PADDING_PARENT, TokenTree, TreeBatch, ancestor_mask
from treespec.tree.transfer import upload

MASK_IMPLEMENTATIONS = ("sdpa", "eager", "flex_attention")
MOST_ON_HOST = 1 << 17
"""Entries of a mask that the host makes: it travels with the tokens. A larger one is put together on the device."""
WINDOW_FIELDS = ("sliding_window", "attention_chunk_size", "window_size")
"""The fields of configurations that limit how far a layer attends. A self-check reads more tokens than the least of
them, as far as that is quick: a mask that forgets a limit it cannot find in a shorter text."""
Mask: TypeAlias = Tensor | BlockMask


class Reach(NamedTuple):
    """How far back a layer attends: to the start, over `size` positions, or to the start of a chunk of `size`.

    Another kind needs its name, its line in `allows` and in `attention_layout`, and its size in `WINDOW_FIELDS`.
    """

    kind: Literal["full", "sliding", "chunked"]
    size: int = 0

    def allows(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Whether a token at the position `query` may attend one at `key`, an earlier one or itself; broadcast."""
        match self.kind:
            case "full":
                return torch.ones_like(query - key, dtype=torch.bool)
            case "sliding":
                return query - key < self.size
            case "chunked":
                return query // self.size == key // self.size


@dataclass(frozen=True)
class AttentionLayout:
    """Which masks a model takes: the reach of every layer type, or of all layers under the one key None; and whether it
    needs the keys' positions itself."""

    implementation: str
    reaches: dict[str | None, Reach]
    needs_key_positions: bool = True


@dataclass(frozen=True)
class TreeAttention:
    """A model's inputs for scoring nodes in addition to the tokens: the attention mask and positions."""

    mask: Mask | dict[str, Mask] | None
    """The model's `attention_mask`: bool [B, 1, F, K] for sdpa (True: attend), additive float [B, 1, F, K] for eager, a
    BlockMask for flex_attention, a dict of them by layer type where the model's layers differ; None when the model's
    own causal mask is the right one."""
    position_ids: Int[Tensor, "B F"]
    key_positions: Int[Tensor, "B K"] | None = None
    """The position of every slot's token (any number where there is none), for models whose keys need it
    (alibi); None where slots are positions or no layer needs them."""

    def upload(self, device: torch.device, *more: Shaped[Tensor, "..."]) -> tuple["TreeAttention", list[Tensor]]:
        """The same on `device`, and further tensors, by one copy."""
        masks: dict[str, Any] = self.mask if isinstance(self.mask, dict) else {"": self.mask}
        names = [name for name, mask in masks.items() if isinstance(mask, Tensor)]
        keys = [] if self.key_positions is None else [self.key_positions]
        positions, *rest = upload(device, self.position_ids, *(masks[name] for name in names), *keys, *more)
        moved = masks | dict(zip(names, rest, strict=False))
        attention = TreeAttention(
            mask=moved if isinstance(self.mask, dict) else moved[""],
            position_ids=positions,
            key_positions=rest[len(names)] if keys else None,
        )
        return attention, rest[len(names) + len(keys) :]


@dataclass(frozen=True)
class CachedSlots:
    """The committed part of a cache, as the host knows it."""

    mask: Bool[Tensor, "B S"]  # False on left padding and on holes: slots that other rows of the batch fill.
    is_contiguous: bool = False  # True when `mask` is known to be all True: a slot's number is its position.
    num_slots: int | None = None  # The length of a static cache; None for growing ones.
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # Where the model takes its masks.

    @cached_property
    def lengths(self) -> Int[Tensor, " B"]:
        """Committed tokens per row, on the host."""
        return self.mask.sum(1)

    @cached_property
    def on_device(self) -> Bool[Tensor, "B S"]:
        """The mask where the model takes it: one copy for all passes up to the next commit."""
        return upload(self.device, self.mask)[0]

    def upload(self, *tensors: Shaped[Tensor, "..."]) -> list[Shaped[Tensor, "..."]]:
        """Host tensors to the same device; the mask travels with the first of them."""
        if "on_device" in vars(self):
            return upload(self.device, *tensors)
        *copies, mask = upload(self.device, *tensors, self.mask)
        vars(self)["on_device"] = mask
        return copies


def attention_layout(config: PreTrainedConfig, types: Collection[str] | None = None) -> AttentionLayout:
    """Read from a model's configuration which masks its layers take, all or those of these `types`.

    Raises `UnsupportedModelError`: an attention implementation without free masks (flash attention), or a layer type
    that is not attention over all cached tokens (recurrent, compressed).
    """
    text = config.get_text_config()
    implementation = plain_implementation(text)
    if implementation not in MASK_IMPLEMENTATIONS:
        remedy = f"load the model with one of attn_implementation={MASK_IMPLEMENTATIONS}, or verify chains"
        raise UnsupportedModelError(f"attention implementation {implementation!r} takes no tree mask: {remedy}")
    reaches: dict[str | None, Reach] = {
        "full_attention": Reach("full"),
        "sliding_attention": Reach("sliding", getattr(text, "sliding_window", None) or 0),
        "chunked_attention": Reach("chunked", getattr(text, "attention_chunk_size", None) or 0),
    }
    types = getattr(text, "layer_types", None) if types is None else types
    if types is None:
        # transformers' models without layer types apply a window in all layers.
        return AttentionLayout(implementation, {None: next((r for r in reaches.values() if r.size), Reach("full"))})
    unknown = set(types) - set(reaches)
    if unknown:
        raise UnsupportedModelError(f"layers of type {sorted(unknown)} take no tree mask: no trees for this model")
    return AttentionLayout(implementation, {name: reaches[name] for name in types})


def tree_attention_mask(
    trees: TreeBatch | TokenTree | Sequence[TokenTree],
    cached: Bool[Tensor, "B S"] | int,
    config: PreTrainedConfig,
    *,
    dtype: torch.dtype = torch.float32,
    num_slots: int | None = None,
) -> TreeAttention:
    """The attention mask and the position ids for one forward pass over whole trees.

    Args:
        trees: one tree, several of any sizes, or a batch; padding nodes attend the row's tokens and themselves.
        cached: True where a cache slot holds a committed token (left padding and holes are False), or
            the number of cached tokens where every slot holds one, on a CPU. Every layer must keep all tokens, see
            `new_cache`.
        config: the model's configuration; it names the attention implementation, layer types and windows.
        dtype: the model's dtype, for additive masks.
        num_slots: the number of slots of a static cache.

    Raises:
        InvalidTreeError: the trees' rows are not those of `cached`.
        UnsupportedModelError: the attention implementation or a layer type takes no tree mask.
    """
    given = [trees] if isinstance(trees, TokenTree) else trees
    batch = given if isinstance(given, TreeBatch) else TreeBatch.from_trees(given)
    if isinstance(cached, int):
        cached = torch.ones(batch.num_rows, cached, dtype=torch.bool, device="cpu")
    slots = CachedSlots(cached.cpu(), bool(cached.all()), num_slots, cached.device)
    if slots.mask.ndim != 2 or slots.mask.dtype != torch.bool or slots.mask.shape[0] != batch.num_rows:
        got = f"{slots.mask.dtype} {list(slots.mask.shape)}"
        raise InvalidTreeError(f"cached must be bool [{batch.num_rows}, S], one row per tree, got {got}")
    attention = pending_attention(slots, batch.parents, batch.max_nodes, attention_layout(config), dtype)
    return attention.upload(slots.device)[0]


def pending_attention(
    slots: CachedSlots, parents: Int[Tensor, "B N"], num_new: int, layout: AttentionLayout, dtype: torch.dtype
) -> TreeAttention:
    """The mask and positions of the last `num_new` of the N pending nodes, which follow the committed slots.

    `parents` is on the host; `dtype` is that of additive masks. Chains after full slots need no mask. What is small
    stays on the host, see `TreeAttention.upload`.
    """
    num_pending = parents.shape[1]
    if slots.is_contiguous and is_known_chain(parents):
        first = slots.mask.shape[1] + num_pending - num_new
        positions = torch.arange(first, first + num_new, device="cpu").expand(parents.shape[0], -1)
        return TreeAttention(None, positions)
    num_keys = slots.num_slots or slots.mask.shape[1] + num_pending
    if layout.implementation != "flex_attention" and parents.shape[0] * num_new * num_keys <= MOST_ON_HOST:
        slots = replace(slots, device=torch.device("cpu"))
    ancestors = ancestor_mask(parents)
    depths = (ancestors.sum(-1) - 1).clamp(min=0)
    # Padding nodes have no ancestors, but a query without a key would be NaN in some attention kernels.
    ancestors = ancestors | torch.eye(num_pending, dtype=torch.bool, device="cpu")
    pending_positions, ancestors = slots.upload(slots.lengths.unsqueeze(1) + depths, ancestors)
    allowed = _attended_keys(slots, ancestors, num_new)
    positions = pending_positions[:, -num_new:]
    is_limited = any(reach.kind != "full" for reach in layout.reaches.values())
    key_positions = _key_positions(slots, pending_positions) if is_limited or layout.needs_key_positions else None
    masks = {
        layer_type: _encode(_limit(allowed, positions, key_positions, reach), layout.implementation, dtype)
        for layer_type, reach in layout.reaches.items()
    }
    named = {name: mask for name, mask in masks.items() if name is not None}
    return TreeAttention(named or masks[None], positions, key_positions)


def is_known_chain(parents: Int[Tensor, "B N"]) -> bool:
    """Whether all rows are chains, padding at the end."""
    if parents.shape[1] == 1:
        return True
    steps = torch.arange(-1, parents.shape[1] - 1, device="cpu")
    return bool(((parents == steps) | (parents == PADDING_PARENT)).all())


def _attended_keys(slots: CachedSlots, ancestors: Bool[Tensor, "B N N"], num_new: int) -> Bool[Tensor, "B F K"]:
    """Committed tokens, ancestors and the node itself; not the unused slots of a static cache."""
    committed = slots.on_device.unsqueeze(1).expand(-1, num_new, -1)
    return _padded(torch.cat([committed, ancestors[:, -num_new:]], dim=2), slots)


def _key_positions(slots: CachedSlots, pending_positions: Int[Tensor, "B N"]) -> Int[Tensor, "B K"]:
    positions = (slots.on_device.cumsum(1) - 1).clamp(min=0)  # Meaningless where the slot is empty.
    return _padded(torch.cat([positions, pending_positions], dim=1), slots)


def _padded(keys: Shaped[Tensor, "*rows _"], slots: CachedSlots) -> Shaped[Tensor, "*rows K"]:
    """The mask with zeros for the unused slots of a static cache."""
    missing = 0 if slots.num_slots is None else slots.num_slots - keys.shape[-1]
    return torch.nn.functional.pad(keys, (0, missing)) if missing else keys


def _limit(
    allowed: Bool[Tensor, "B F K"],
    positions: Int[Tensor, "B F"],
    key_positions: Int[Tensor, "B K"] | None,
    reach: Reach,
) -> Bool[Tensor, "B F K"]:
    """The allowed keys within a layer's reach."""
    if key_positions is None or reach.kind == "full":
        return allowed
    return allowed & reach.allows(positions.unsqueeze(2), key_positions.unsqueeze(1))


def _encode(allowed: Bool[Tensor, "B F K"], implementation: str, dtype: torch.dtype) -> Mask:
    """The mask in the form that the attention implementation reads."""
    if implementation == "flex_attention":

        def attends(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return allowed[row, query, key]

        num_rows, num_queries, num_keys = allowed.shape
        return create_block_mask(attends, num_rows, None, num_queries, num_keys, device=str(allowed.device))
    mask = allowed.unsqueeze(1)
    if implementation == "sdpa":
        return mask
    # Eager attention adds the mask to its scores: a bool mask would be read as 0 and 1 there, silently.
    return torch.full(mask.shape, torch.finfo(dtype).min, dtype=dtype, device=mask.device).masked_fill_(mask, 0.0)
