"""The prompts that `treespec.generate` takes, as the keyword arguments of `model.generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import ConfigError

Inputs: TypeAlias = Tensor | Mapping[str, Any] | Sequence[int] | Sequence[Sequence[int]] | str | Sequence[str]


def prompt_arguments(model: PreTrainedModel, inputs: Inputs | None, tokenizer: Any, spread: dict[str, Any]) -> dict:
    """Keyword arguments of `model.generate` that hold the prompts as tensors.

    Args:
        model: for the device of prompts that are no tensors yet.
        inputs, tokenizer: see `treespec.generate`.
        spread: the caller's other keyword arguments, `input_ids=` perhaps among them.

    Raises:
        ConfigError: no prompts or prompts given twice, strings without a tokenizer, rows of different lengths.
    """
    if (inputs is None) == (spread.get("input_ids") is None):
        if spread.get("inputs_embeds") is not None:
            raise ConfigError("drafts are token ids: give the prompts as input_ids, not as inputs_embeds")
        got = "neither" if inputs is None else "both"
        raise ConfigError(f"the prompts are the second argument, or input_ids=: got {got}")
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        return {name: _as_ids(value, model) if name == "input_ids" else value for name, value in inputs.items()}
    texts = [inputs] if isinstance(inputs, str) else inputs
    if isinstance(texts, Sequence) and texts and all(isinstance(text, str) for text in texts):
        if tokenizer is None:
            raise ConfigError("the prompts are strings: give tokenizer=tokenizer too, or encode them first")
        padding = {"padding": True, "padding_side": "left"} if len(texts) > 1 else {}
        return dict(tokenizer(list(texts), return_tensors="pt", **padding).to(model.device))
    return {"inputs": _as_ids(inputs, model)}


def _as_ids(ids: Any, model: PreTrainedModel) -> Any:
    """Lists of token ids as a tensor [B, P]; tensors as they are, and all else too, for the checks of the ids."""
    if not isinstance(ids, (list, tuple)):
        return ids
    rows = ids if ids and all(isinstance(row, (list, tuple)) for row in ids) else [ids]
    if not all(isinstance(token, int) for row in rows for token in row):
        raise ConfigError(f"input_ids must be int64 [B, P] or lists of token ids, got {ids!r:.60}")
    if len({len(row) for row in rows}) > 1:
        raise ConfigError(
            "prompts of different lengths need padding: tokenizer(..., padding=True, padding_side='left')"
        )
    return torch.tensor(rows, dtype=torch.int64, device=model.device)
