"""Block-parallel heads from their authors' files (z-lab's DFlash, DeepSpec's DSpark) and the speculators library's.

The authors keep Qwen3's keys at the top of `config.json`, DFlash's own in `dflash_config` and DSpark's beside the
others; `target_layer_ids` count layer *outputs*, from zero: hidden_states[id + 1]. The speculators library keeps the
layers in `transformer_layer_config`, and its `aux_hidden_state_layer_ids` are indices of hidden_states themselves.
Tensors have the same names in both. Files without an `lm_head` use the target's, files without an embedding too.

Layers with a sliding window are causal inside a block in the speculators library unless `sliding_window_non_causal`,
and not in the authors' own code; `dflash_config.causal` makes all layers causal (JetSpec's blocks).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.files.checkpoint import MAX_COUNT, positive_int
from treespec.heads.files.parts import (
    FULL,
    SLIDING,
    layer_config,
    layer_numbers,
    llama_keys,
    num_layers,
    sliding_window,
)
from treespec.heads.modules.dflash import DFlashConfig, Span

ALGORITHMS = ("dflash", "dspark")
LAYER_IDS = "aux_hidden_state_layer_ids"
W1, CONFIDENCE = "markov_head.markov_w1.weight", "confidence_head.proj.weight"


def is_block_config(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is that of a block-parallel head."""
    kind = config.get("speculators_model_type")
    return kind in ALGORITHMS if kind is not None else "dflash_config" in config or "block_size" in config


def block_config(config: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> DFlashConfig:
    """The head's shape.

    Raises:
        CheckpointError: another kind of model, a missing or wrong size, or a setting that is not read.
    """
    llama, own = llama_keys(config, path), config.get("dflash_config") or {}
    if not isinstance(own, Mapping):
        raise CheckpointError(f"{path}: dflash_config must be an object, got {type(own).__name__}")
    for key, known in {"projector_type": ALGORITHMS, "markov_head_type": ("vanilla",)}.items():
        if (value := config.get(key, own.get(key, known[0]))) not in known:
            raise CheckpointError(f"{path}: {key} {value!r} is not read, only {' and '.join(known)}")
    layer, count = layer_config(llama, tensors, path), num_layers(llama, tensors, path)
    vocab_size = positive_int(llama, "vocab_size", path)
    rank = _markov_rank(config, tensors, path)
    is_dspark = config.get("speculators_model_type") == "dspark" or "DSpark" in str(config.get("architectures"))
    is_anchored = config.get("sample_from_anchor", own.get("sample_from_anchor", config.get("shift_label")))
    hidden_layers = _hidden_layers(config, own, count, path)
    return DFlashConfig(
        layer=layer,
        vocab_size=vocab_size,
        draft_vocab_size=positive_int(config, "draft_vocab_size", path, vocab_size),
        target_hidden_size=positive_int(config, "target_hidden_size", path, layer.hidden_size),
        num_features=len(hidden_layers),
        block_size=_block_size(config, own, path),
        mask_token=_mask_token(config, own, vocab_size, path),
        spans=_spans(config, own, llama, count, path),
        has_anchor_output=is_dspark or rank > 0 if is_anchored is None else bool(is_anchored),
        markov_rank=rank,
        has_confidence=bool(config.get("enable_confidence_head", CONFIDENCE in tensors)),
        has_markov_confidence=bool(config.get("confidence_head_with_markov")) and rank > 0,
        has_confidence_bias="confidence_head.proj.bias" in tensors,
        hidden_layers=hidden_layers,
    )


def _markov_rank(config: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> int:
    if config.get("markov_rank") in (None, 0):
        stored = tensors.get(W1)
        return 0 if stored is None or stored.ndim != 2 or config.get("markov_rank") == 0 else stored.shape[1]
    return positive_int(config, "markov_rank", path)


def _block_size(config: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> int:
    given = {"block_size": config.get("block_size", own.get("block_size"))}
    size = positive_int(given, "block_size", path, limit=MAX_COUNT)
    if size < 2:
        raise CheckpointError(f"{path}: block_size must be 2 or more, got {size}")
    return size


def _mask_token(config: Mapping[str, Any], own: Mapping[str, Any], vocab_size: int, path: Path) -> int:
    token = own.get("mask_token_id", config.get("mask_token_id"))
    if type(token) is not int or not 0 <= token < vocab_size:
        raise CheckpointError(f"{path}: config.json must have a mask_token_id in [0, {vocab_size}), got {token!r}")
    return token


def _hidden_layers(config: Mapping[str, Any], own: Mapping[str, Any], count: int, path: Path) -> tuple[int, ...]:
    """Indices of `HiddenStates`; see the module's docstring. z-lab's default spreads over the target's layers."""
    if config.get(LAYER_IDS):
        return layer_numbers(config[LAYER_IDS], LAYER_IDS, path)
    outputs = own.get("target_layer_ids", config.get("target_layer_ids"))
    if outputs is None:
        outputs = _spread(positive_int(config, "num_target_layers", path), count)
    if not outputs:
        raise CheckpointError(f"{path}: target_layer_ids must name a layer at least")
    return tuple(i + 1 for i in layer_numbers(outputs, "target_layer_ids", path))


def _spread(num_target_layers: int, count: int) -> list[int]:
    """z-lab's choice of `count` layers: evenly from the second to the third from last, [1, 9, 17, 25, 33] of 36."""
    if count == 1:
        return [num_target_layers // 2]
    return [round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count)]


def _spans(
    config: Mapping[str, Any], own: Mapping[str, Any], llama: Mapping[str, Any], count: int, path: Path
) -> tuple[Span, ...]:
    kinds = llama.get("layer_types") or [FULL] * count
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise CheckpointError(f"{path}: layer_types must name {FULL} or {SLIDING} {count} times")
    is_all_causal = bool(own.get("causal"))
    is_speculators = "speculators_model_type" in config
    is_sliding_causal = is_speculators and not config.get("sliding_window_non_causal")
    return tuple(
        Span(sliding_window(llama, path), is_all_causal or is_sliding_causal)
        if kind == SLIDING
        else Span(None, is_all_causal)
        for kind in kinds
    )
