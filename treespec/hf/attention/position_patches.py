"""Patches, for one pass, of models that take a token's slot in the cache for its position.

In a tree siblings are in neighbouring slots but have one position. Most models take positions and masks as arguments;
the few that count slots themselves are patched here: alibi (bloom, falcon, mpt), windows kept as a buffer (gpt_neo) and
query temperatures (llama4). A model is unchanged outside the pass, and so are the passes of other threads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.hf.attention.mask import TreeAttention
from treespec.hf.introspect import cache_in, text_modules
from treespec.hf.thread_patches import current, replaced

_BIAS_NAMES = ("alibi", "position_bias")


class PositionPatches:
    """The modules of a model that count slots; false when there are none."""

    def __init__(self, model: PreTrainedModel, modules: Mapping[str, nn.Module] | None = None) -> None:
        found = list(text_modules(model, modules).values())
        self._blocks = _alibi_blocks(model, found)
        local = [module for module in found if getattr(module, "attention_type", None) == "local"]
        self._windows = [module for module in local if "bias" in dict(module.named_buffers(recurse=False))]
        self._tempered = [
            module
            for module in found
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
        """Patch the model for a pass with a mask over `attention`'s nodes; yields the attention to call it with."""
        keys = attention.key_positions
        if not self or attention.mask is None or keys is None:  # Without a mask slots are positions.
            yield attention
            return
        with ExitStack() as stack:
            for module in self._tempered:
                _temper(module, attention.position_ids, stack)
            if self._blocks:
                mask: Any = attention.mask  # [B, 1, F, K], bool or additive
                allowed = (mask if mask.dtype == torch.bool else mask == 0).squeeze(1)
                for block in self._blocks:
                    biased = _biased(current(block, "forward"), allowed, keys)
                    stack.enter_context(replaced(block, "forward", biased))
            for module in self._windows:
                near = attention.position_ids.unsqueeze(2) - keys.unsqueeze(1) < self._window_size
                # Hides the buffer of the same name; causality is left to the mask.
                rows = _WindowRows(near, current(module, "bias").device)
                stack.enter_context(replaced(module, "bias", rows))
            yield replace(attention, mask=torch.ones_like(keys)) if self._blocks else attention


class _WindowRows:
    """Replaces gpt_neo's window buffer [1, 1, L, L], of which a pass reads the rows of its own queries."""

    def __init__(self, near: Bool[Tensor, "B F K"], device: torch.device) -> None:
        self._near = near.unsqueeze(1).to(device)

    def __getitem__(self, index: Any) -> Tensor:
        return self._near


def _temper(module: Any, positions: Int[Tensor, "B F"], stack: ExitStack) -> None:
    """Scale the queries by their positions (llama4, arXiv 2501.19399), where the module counts slots."""
    first_slot = 0
    attend, project = current(module, "forward"), current(module.q_proj, "forward")

    def scale(numbers: Tensor) -> Tensor:
        return torch.log1p(torch.floor((numbers.float() + 1) / module.floor_scale)) * module.attn_scale + 1

    def record_slot(*args: Any, **kwargs: Any) -> Any:
        nonlocal first_slot
        cache = cache_in(kwargs)
        first_slot = 0 if cache is None else int(cache.get_seq_length(module.layer_idx))
        return attend(*args, **kwargs)

    def correct(*args: Any, **kwargs: Any) -> Tensor:
        queries = project(*args, **kwargs)
        slots = torch.arange(first_slot, first_slot + positions.shape[1], device=queries.device)
        # The module multiplies by the slots' scale afterwards, so it is divided out here.
        return (queries * (scale(positions.to(queries.device)) / scale(slots)).unsqueeze(-1)).to(queries.dtype)

    stack.enter_context(replaced(module, "forward", record_slot))
    stack.enter_context(replaced(module.q_proj, "forward", correct))


def _alibi_blocks(model: PreTrainedModel, modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The transformer blocks of a model that passes them an alibi bias; none for any other model."""
    if not getattr(model.config.get_text_config(), "alibi", True):
        return []
    stacks = [module for module in modules if isinstance(module, nn.ModuleList)]
    blocks = [block for stack in stacks for block in stack]
    # By class, for a signature takes longer to read than a layer to list.
    names = {kind: _bias_name(inspect.signature(kind.forward).parameters) for kind in {type(block) for block in blocks}}
    return [block for block in blocks if names[type(block)] is not None]


def _biased(
    forward: Callable[..., Any], allowed: Bool[Tensor, "B F K"], key_positions: Int[Tensor, "B K"]
) -> Callable[..., Any]:
    """The `forward` of an alibi block, with another mask and bias.

    Such a block adds `slope * slot` to every score. Its own bias for a plain text serves as the table of biases by
    position; so the model is to be called with a mask of ones [B, K], as for a text without padding.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        name = _bias_name(kwargs)
        if name is None:
            return forward(*args, **kwargs)
        bias = kwargs[name]
        keys = key_positions.to(bias.device)
        nodes = allowed.to(bias.device).unsqueeze(1)
        mask = _masked(kwargs["attention_mask"], nodes, keys)
        return forward(*args, **{**kwargs, name: _bias_at(name, bias, keys), "attention_mask": mask})

    return run


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


def _bias_name(names: Any) -> str | None:
    return next((name for name in _BIAS_NAMES if name in names), None)


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
