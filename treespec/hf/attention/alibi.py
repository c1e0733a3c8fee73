"""Alibi models (bloom, falcon with alibi, mpt) take a key's slot for its position: here its depth gives the position.

Such a model adds `slope * slot` to every attention score. Its own bias for a plain text serves as the table of biases
by position, in which hooks on its blocks look up every key. Axis letters: B rows, A heads, F new nodes, K key slots.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

BIAS_NAMES = ("alibi", "position_bias")


def alibi_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The transformer blocks of a model that passes them an alibi bias; none for any other model."""
    if not getattr(model.config.get_text_config(), "alibi", True):
        return []
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    blocks = [block for stack in stacks for block in stack]
    return [block for block in blocks if _bias_name(inspect.signature(block.forward).parameters) is not None]


def hook_blocks(
    blocks: list[nn.Module], allowed: Bool[Tensor, "B F K"], key_positions: Int[Tensor, "B K"]
) -> list[RemovableHandle]:
    """Replace mask and bias of the blocks until the handles are removed, in this thread's passes only.

    The model is to be called with a mask of ones [B, K], so that its own bias is that of a text without padding.
    """
    hook = _block_hook(allowed, key_positions)
    return [block.register_forward_pre_hook(hook, with_kwargs=True) for block in blocks]


class _RowBias:
    """A bias [B, A, 1, K] for attention code (mpt's) that expects one [A, 1, K] for all rows and adds it to scores."""

    def __init__(self, bias: Tensor) -> None:
        self._bias = bias
        self.shape = bias.shape[1:]

    def size(self, axis: int) -> int:
        return self.shape[axis]

    def __getitem__(self, index: Any) -> _RowBias:
        """The attention code cuts the bias to the newest K keys; it has exactly these."""
        return self

    def __radd__(self, scores: Tensor) -> Tensor:
        return scores + self._bias.to(scores.device)


def _block_hook(
    allowed: Bool[Tensor, "B F K"], key_positions: Int[Tensor, "B K"]
) -> Callable[..., tuple[Any, dict[str, Any]] | None]:
    owner = threading.get_ident()

    def replace_bias(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        name = _bias_name(kwargs)
        if threading.get_ident() != owner or name is None:
            return None
        bias = kwargs[name]
        keys, nodes = key_positions.to(bias.device), allowed.to(bias.device).unsqueeze(1)
        mask = _masked(kwargs["attention_mask"], nodes, keys)
        return args, {**kwargs, name: _bias_at(name, bias, keys), "attention_mask": mask}

    return replace_bias


def _bias_name(names: Any) -> str | None:
    return next((name for name in BIAS_NAMES if name in names), None)


def _bias_at(name: str, bias: Tensor, keys: Int[Tensor, "B K"]) -> Tensor | _RowBias:
    """A bias by slots, [B * A, 1, K] (bloom), [B, A, 1, K] (falcon) or [A, 1, >= K] (mpt), by the keys' positions."""
    num_rows, num_keys = keys.shape
    if name == "position_bias":
        return _RowBias(_take(bias[None, ..., -num_keys:].expand(num_rows, -1, -1, -1), keys))
    return _take(bias.reshape(num_rows, -1, 1, num_keys), keys).reshape(bias.shape)


def _take(table: Float[Tensor, "B A 1 P"], keys: Int[Tensor, "B K"]) -> Float[Tensor, "B A 1 K"]:
    """The entries of a table by position, at the keys' positions."""
    return table.gather(3, keys[:, None, None, :].expand(-1, table.shape[1], -1, -1))


def _masked(mask: Tensor, allowed: Bool[Tensor, "B 1 F K"], keys: Int[Tensor, "B K"]) -> Tensor:
    """The nodes' mask, from the one [B, 1 or A, F, K] that the blocks get for a plain text."""
    if mask.dtype == torch.bool:
        # Only mpt passes its blocks a bool mask, in which True means masked.
        return ~allowed
    # The last query of a text attends every slot: its row is what the model adds to the scores (falcon: the bias).
    return _take(mask[:, :, -1:, :], keys).masked_fill(~allowed, torch.finfo(mask.dtype).min)
