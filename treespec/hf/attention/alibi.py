"""Alibi models (bloom, falcon with alibi, mpt) read a key's position off its slot: here it comes from its depth.

Such a model adds `slope * slot` to every attention score. In a tree siblings lie in neighbouring slots but stand at one
position. Each model's own bias for a plain text is kept as the table of biases by position, hooks on its blocks look
every key up in it, and no number is computed twice. Axis letters: B rows, A heads, F new nodes, K key slots.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

BIAS_NAMES = ("alibi", "position_bias")


def alibi_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The transformer blocks of a model that hands them an alibi bias; none for any other model."""
    if not getattr(model.config.get_text_config(), "alibi", True):
        return []
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    blocks = [block for stack in stacks for block in stack]
    return [block for block in blocks if _bias_name(inspect.signature(block.forward).parameters) is not None]


def hook_blocks(blocks: list[nn.Module], allowed: Tensor, key_positions: Tensor) -> list[RemovableHandle]:
    """Make the blocks take mask and bias from here, until the handles are removed, in this thread's passes only.

    The model is to be called with a mask of ones [B, K], so that its own bias is that of a text without padding.

    Args:
        blocks: see `alibi_blocks`.
        allowed: bool [B, F, K], what a node attends.
        key_positions: int64 [B, K].
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
        """The code cuts the bias to the newest keys; this one has just the K keys, so nothing is cut."""
        return self

    def __radd__(self, scores: Tensor) -> Tensor:
        return scores + self._bias.to(scores.device)


def _block_hook(allowed: Tensor, key_positions: Tensor) -> Callable[..., tuple[Any, dict[str, Any]] | None]:
    owner = threading.get_ident()

    def put_positions(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        name = _bias_name(kwargs)
        if threading.get_ident() != owner or name is None:
            return None
        bias = kwargs[name]
        keys, nodes = key_positions.to(bias.device), allowed.to(bias.device).unsqueeze(1)
        mask = _masked(kwargs["attention_mask"], nodes, keys)
        return args, {**kwargs, name: _bias_at(name, bias, keys), "attention_mask": mask}

    return put_positions


def _bias_name(names: Any) -> str | None:
    return next((name for name in BIAS_NAMES if name in names), None)


def _bias_at(name: str, bias: Tensor, keys: Tensor) -> Tensor | _RowBias:
    """A bias by slots, [B * A, 1, K] (bloom), [B, A, 1, K] (falcon) or [A, 1, >= K] (mpt), at the keys int64 [B, K]."""
    num_rows, num_keys = keys.shape
    if name == "position_bias":
        return _RowBias(_take(bias[None, ..., -num_keys:].expand(num_rows, -1, -1, -1), keys))
    return _take(bias.reshape(num_rows, -1, 1, num_keys), keys).reshape(bias.shape)


def _take(table: Tensor, keys: Tensor) -> Tensor:
    """[B, A, 1, K] by position to the same by key slot."""
    return table.gather(3, keys[:, None, None, :].expand(-1, table.shape[1], -1, -1))


def _masked(mask: Tensor, allowed: Tensor, keys: Tensor) -> Tensor:
    """The blocks' mask over a text, [B, 1 or A, F, K], made that of the nodes `allowed` bool [B, 1, F, K]."""
    if mask.dtype == torch.bool:
        # Only mpt hands its blocks a bool mask, in which True stands for masked.
        return ~allowed
    # The last query of a text attends every slot: its row holds what the model adds to the scores (falcon: the bias).
    return _take(mask[:, :, -1:, :], keys).masked_fill(~allowed, torch.finfo(mask.dtype).min)
