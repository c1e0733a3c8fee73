"""Patches, for one pass, of models that take a token's slot in the cache for its position.

In a tree siblings lie in neighbouring slots but have one position. Most models take positions and masks as arguments;
the few that count slots themselves are patched here: alibi (bloom, falcon, mpt), windows kept as a buffer (gpt_neo) and
query temperatures (llama4). A model is unchanged outside the pass, and so are the passes of other threads; as hooks are
added and removed, a model shared by threads should not be called by two of them at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.hf.attention.alibi import alibi_blocks, hook_blocks
from treespec.hf.attention.mask import TreeAttention


class PositionPatches:
    """The modules of a model that count slots; false when there are none."""

    def __init__(self, model: PreTrainedModel) -> None:
        modules = list(model.modules())
        self._blocks = alibi_blocks(model)
        self._windows = [module for module in modules if _has_window(module)]
        self._tempered = [
            module
            for module in modules
            if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True)
        ]
        self._window_size = getattr(model.config.get_text_config(), "window_size", 0)

    def __bool__(self) -> bool:
        return bool(self._blocks or self._windows or self._tempered)

    @property
    def fit_static_caches(self) -> bool:
        """False for models that take the number of slots, free ones of a static cache included, for that of tokens."""
        return not (self._blocks or self._windows)

    @contextmanager
    def applied(self, attention: TreeAttention) -> Iterator[TreeAttention]:
        """Patch the model for a pass over `attention`'s nodes; yields the attention to call it with.

        Without a mask slots are positions, and nothing is patched.
        """
        keys = attention.key_positions
        if not self or attention.mask is None or keys is None:
            yield attention
            return
        with ExitStack() as stack:
            for module in self._tempered:
                stack.enter_context(_temperature(module, attention.position_ids))
            for module in self._windows:
                near = attention.position_ids.unsqueeze(2) - keys.unsqueeze(1) < self._window_size
                stack.enter_context(_window(module, near))
            if self._blocks:
                for handle in hook_blocks(self._blocks, _allowed(attention.mask), keys):
                    stack.callback(handle.remove)
                attention = replace(attention, mask=torch.ones_like(keys))
            yield attention


def _allowed(mask: Any) -> Bool[Tensor, "B F K"]:
    """From a mask [B, 1, F, K] that is bool or additive."""
    return (mask if mask.dtype == torch.bool else mask == 0).squeeze(1)


def _has_window(module: nn.Module) -> bool:
    is_local = getattr(module, "attention_type", None) == "local"
    return is_local and "bias" in dict(module.named_buffers(recurse=False))


class _WindowRows:
    """Replaces gpt_neo's window buffer [1, 1, L, L], of which a pass reads the rows of its own queries."""

    def __init__(self, buffer: Tensor, near: Bool[Tensor, "B F K"]) -> None:
        self._buffer, self._near, self._owner = buffer, near.unsqueeze(1), threading.get_ident()

    def __getitem__(self, index: Any) -> Tensor:
        if threading.get_ident() != self._owner:
            return self._buffer[index]
        return self._near.to(self._buffer.device)


@contextmanager
def _window(module: nn.Module, near: Bool[Tensor, "B F K"]) -> Iterator[None]:
    """Make the keys `near` the module's window; causality is left to the mask."""
    # An attribute of the instance hides the buffer of the same name, which is unchanged.
    vars(module)["bias"] = _WindowRows(module.get_buffer("bias"), near)
    try:
        yield
    finally:
        del vars(module)["bias"]


@contextmanager
def _temperature(module: Any, positions: Int[Tensor, "B F"]) -> Iterator[None]:
    """Scale the queries by their positions (llama4, arXiv 2501.19399), where the module counts slots."""
    owner = threading.get_ident()
    first_slot = 0

    def scale(numbers: Tensor) -> Tensor:
        return torch.log1p(torch.floor((numbers.float() + 1) / module.floor_scale)) * module.attn_scale + 1

    def record_slot(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        nonlocal first_slot
        if threading.get_ident() == owner:
            first_slot = int(kwargs["past_key_values"].get_seq_length(module.layer_idx))

    def correct(_: nn.Module, args: Any, queries: Tensor) -> Tensor | None:
        if threading.get_ident() != owner:
            return None
        slots = torch.arange(first_slot, first_slot + positions.shape[1], device=queries.device)
        # The module multiplies by the slots' scale afterwards, so it is divided out here.
        return (queries * (scale(positions.to(queries.device)) / scale(slots)).unsqueeze(-1)).to(queries.dtype)

    handles = [
        module.register_forward_pre_hook(record_slot, with_kwargs=True),
        module.q_proj.register_forward_hook(correct),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
