"""Checks of a call's arguments before any work (errors name what is not supported), and its prompts as tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypedDict, cast

import numpy as np
import torch
from torch import Tensor
from transformers import (
    BatchEncoding,
    BatchFeature,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from treespec.errors import ConfigError, UnsupportedModeError
from treespec.hf.generation.config_fields import check_fields
from treespec.hf.introspect import CACHE_ARGUMENTS, check_model, forward_arguments, input_device, is_multimodal
from treespec.hf.models.prompt import OUTPUTS, placeholder_ids

Inputs: TypeAlias = Tensor | Mapping[str, object] | Sequence[int] | Sequence[Sequence[int]] | str | Sequence[str]
Encoding: TypeAlias = BatchEncoding | BatchFeature
Tokenizer: TypeAlias = PreTrainedTokenizerBase | ProcessorMixin
"""A tokenizer, or a processor of images or sounds that has one."""


class ModelArguments(TypedDict, total=False):
    """The model's arguments that transformers passes on next to the prompts' ids: these, caches, images and sounds."""

    attention_mask: Tensor | None
    position_ids: Tensor | None


_TOKENIZED = {
    "input_ids": "token ids",
    "inputs": "token ids",
    "attention_mask": "zeros and ones",
    "token_type_ids": "types",
    "position_ids": "positions",
}
"""Arguments that a tokenizer or the caller may give as lists or arrays, and the kind of their values, for errors."""
_MODEL_KWARGS = {"attention_mask", "position_ids", "logits_to_keep", "use_cache", *CACHE_ARGUMENTS, *OUTPUTS}
"""Arguments of text models that are let in. Tree passes are made by `ModelScorer._run` from tokens, mask, positions and
cache: one that all of them need, as plain `generate` hands it to every pass, must get there too."""


def with_prompts(
    model: PreTrainedModel, inputs: Inputs | None, tokenizer: Tokenizer | None, spread: Mapping[str, object]
) -> dict[str, object]:
    """The keyword arguments of `model.generate` with the prompts of `treespec.generate`, on the model's device.

    `spread` are the caller's other keyword arguments, `input_ids=` perhaps among them. What a tokenizer returns as
    lists or arrays becomes tensors.

    Raises `ConfigError`: no prompts or prompts given twice, strings without a tokenizer, rows of different lengths.
    """
    if (inputs is None) == (spread.get("input_ids") is None):
        if spread.get("inputs_embeds") is not None:
            raise ConfigError("drafts are token ids: give the prompts as input_ids, not as inputs_embeds")
        got = "neither" if inputs is None else "both"
        raise ConfigError(f"the prompts are the second argument, or input_ids=: got {got}")
    named = {**_named(model, inputs, tokenizer), **spread}
    return {name: _as_ids(value, model, name) if name in _TOKENIZED else value for name, value in named.items()}


def _named(model: PreTrainedModel, inputs: Inputs | None, tokenizer: Tokenizer | None) -> Mapping[str, object]:
    """The prompts as keyword arguments, texts encoded."""
    if inputs is None or isinstance(inputs, Mapping):
        return inputs or {}
    texts = [inputs] if isinstance(inputs, str) else inputs
    if isinstance(texts, Sequence) and texts and all(isinstance(text, str) for text in texts):
        if tokenizer is None:
            raise ConfigError("the prompts are strings: give tokenizer=tokenizer too, or encode them first")
        encode = cast("Callable[..., Encoding]", tokenizer)
        padding = {"padding": True, "padding_side": "left"} if len(texts) > 1 else {}
        return _encoded(model, encode(list(texts), return_tensors="pt", **padding))
    return {"inputs": inputs}


def _encoded(model: PreTrainedModel, encoded: Encoding) -> dict[str, Tensor]:
    """A tokenizer's output on the model's device, without `token_type_ids` where the model does not take them.

    Raises `ConfigError`: a text without any token.
    """
    found: dict[str, Tensor] = dict(encoded.to(input_device(model)))
    if "token_type_ids" not in forward_arguments(model):
        found.pop("token_type_ids", None)
    ids = found["input_ids"]
    num_tokens = found.get("attention_mask", torch.ones_like(ids)).sum(1) if ids.numel() else ids.new_zeros(len(ids))
    empty = [row for row, count in enumerate(num_tokens.tolist()) if count == 0]
    if empty:
        raise ConfigError(
            f"the prompt is empty: text {empty[0]} has no token to go on from; begin it with a token such as "
            "tokenizer.bos_token"
        )
    return found


def _as_ids(ids: object, model: PreTrainedModel, name: str) -> object:
    """Lists of ints, one for every token, as a tensor [B, P]; anything else unchanged, for the later checks."""
    ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if not isinstance(ids, (list, tuple)):
        return ids
    rows = ids if ids and all(isinstance(row, (list, tuple)) for row in ids) else [ids]
    is_mask = name == "attention_mask"  # True and False say it too.
    if not all(isinstance(token, int) and (is_mask or not isinstance(token, bool)) for row in rows for token in row):
        raise ConfigError(f"{name} must be int64 [B, P] or lists of {_TOKENIZED[name]}, got {ids!r:.60}")
    if len({len(row) for row in rows}) > 1:
        raise ConfigError(
            "prompts of different lengths need padding: tokenizer(..., padding=True, padding_side='left')"
        )
    return torch.tensor(rows, dtype=torch.int64, device=input_device(model))


def checked_mask(
    model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, arguments: ModelArguments
) -> Tensor:
    """The mask of a call's prompts, bool [B, P]: True on tokens, False on left padding.

    Raises:
        UnsupportedModeError: a field of the config that is not served (see `FIELDS`), model arguments beyond text,
            positions that are not those of a left-padded prompt.
        ConfigError: an empty prompt, ids outside the vocabulary, a mask that is not left padding.
    """
    check_model(model)
    check_fields(vars(config))
    unknown = sorted(name for name, value in arguments.items() if name not in _MODEL_KWARGS and value is not None)
    if unknown and (not is_multimodal(model) or "inputs_embeds" in unknown):
        raise UnsupportedModeError(f"speculation decodes plain text: it cannot pass on the model arguments {unknown}")
    check_ids(model, input_ids)
    mask = prompt_mask(input_ids, arguments.get("attention_mask"))
    if not is_multimodal(model):
        check_positions(arguments.get("position_ids"), mask)
    return mask


def prompt_mask(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The prompt's mask, bool [B, P]: True on tokens, False on left padding.

    Raises `ConfigError`: a mask of another shape, right padding, holes, or a row of nothing but padding.
    """
    if attention_mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    mask = attention_mask.bool()
    if mask.shape != input_ids.shape:
        raise ConfigError(f"attention_mask must have input_ids' shape {list(input_ids.shape)}, got {list(mask.shape)}")
    if not bool(mask.any(dim=1).all()):
        row = int(mask.any(dim=1).long().argmin())
        raise ConfigError(f"the prompt is empty: row {row} is nothing but padding, so there is no token to go on from")
    if not bool(mask[:, -1].all()):
        raise ConfigError("a row ends in padding: decoder-only models need left padding (padding_side='left')")
    if bool((mask.long().diff(dim=1) < 0).any()):
        raise ConfigError("attention_mask has holes inside a prompt: only padding on the left is supported")
    return mask


def check_positions(position_ids: Tensor | None, mask: Tensor) -> None:
    """Raise `UnsupportedModeError` for position ids that are not those of a left-padded prompt."""
    if position_ids is None:
        return
    expected = mask.long().cumsum(1) - 1
    is_same = position_ids.shape == mask.shape and bool((position_ids == expected)[mask].all())
    if not is_same:
        raise UnsupportedModeError("position_ids must be 0, 1, 2, ... after the left padding")


def check_ids(model: PreTrainedModel, input_ids: object) -> None:
    """Refuse anything but a batch of prompts.

    Raises `ConfigError`: not int64 [B, P] with B and P at least one, or an id outside the vocabulary.
    """
    if not isinstance(input_ids, Tensor):
        raise ConfigError(f"input_ids must be an int64 tensor [B, P], got {type(input_ids).__name__}")
    if input_ids.ndim != 2 or input_ids.numel() == 0 or input_ids.dtype not in (torch.int64, torch.int32):
        prefix = "the prompt is empty: " if input_ids.numel() == 0 else ""
        raise ConfigError(
            f"{prefix}input_ids must be int64 token ids [B, P], one row per prompt and at least one token per row, got "
            f"{input_ids.dtype} {list(input_ids.shape)}"
        )
    size = model.config.get_text_config().vocab_size
    low, high = int(input_ids.min()), int(input_ids.max())
    outside = [id for id in (low, high) if not 0 <= id < size and id not in placeholder_ids(model.config)]
    if outside:
        raise ConfigError(f"input_ids hold the id {outside[0]}, outside the vocabulary of {size} tokens")
