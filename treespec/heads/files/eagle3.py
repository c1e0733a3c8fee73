"""EAGLE-3 heads from SafeAILab's files (SGLang's and SpecForge's too) and from those of the speculators library.

The former keep llama's keys at the top of `config.json` and name the layer `midlayer.*`; the latter keep them in
`transformer_layer_config` and name it `layers.0.*`. Both map a reduced vocabulary by `d2t`: target id = draft id +
d2t[draft id].

Which hidden states are fused: a top-level `eagle_aux_hidden_state_layer_ids` (speculators, vLLM) counts layer *inputs*:
vLLM collects a state before it runs the layer of that number, so an id is an index of transformers' `hidden_states`, as
it is in the default [2, L // 2, L - 3], which speculators writes there itself. The ids inside `eagle_config`
(SpecForge, SGLang) count layer *outputs*: SGLang adds one to each, and SpecForge's default is [1, L // 2 - 1, L - 4],
the same three states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from treespec.heads.modules.eagle3 import Eagle3Config

NUM_FEATURES = 3
"""EAGLE-3's own number, for a message where neither the configuration nor `fc.weight` tells it."""

OWN_TENSORS = ("fc.weight", "d2t", "t2d", "layers.0.hidden_norm.weight")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def is_eagle3(tensors: Mapping[str, Tensor]) -> bool:
    """Whether any tensor is one that such a head has and a plain model has not."""
    return any(name in OWN_TENSORS or name.startswith("midlayer.") for name in tensors)


def without_midlayer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the speculators library's names."""
    return {
        f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name: tensor
        for name, tensor in tensors.items()
    }


def eagle3_config(config: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> Eagle3Config:
    """The head's shape. Biases and norms that configurations leave unsaid are those that the file has tensors for.

    Raises:
        CheckpointError: another kind of model, a missing or wrong size, or a setting that is not read.
    """
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise CheckpointError(f"{path} holds a {kind!r} speculator, expected 'eagle3'")
    llama = llama_keys(config, path)
    layer = replace(layer_config(llama, tensors, path), window=_window(llama, path))
    nested = config.get("eagle_config") or {}
    layers = _hidden_layers(config, nested, path)
    vocab_size = positive_int(llama, "vocab_size", path)
    target_hidden_size = positive_int(config, "target_hidden_size", path, layer.hidden_size)
    fused = tensors.get("fc.weight")
    columns = NUM_FEATURES if fused is None or fused.ndim != 2 else max(fused.shape[1] // target_hidden_size, 1)

    def has(flag: str, tensor: str) -> bool:
        said = config.get(flag, nested.get(flag))
        return tensor in tensors if said is None else bool(said)

    return Eagle3Config(
        layer=layer,
        vocab_size=vocab_size,
        draft_vocab_size=positive_int(config, "draft_vocab_size", path, vocab_size),
        target_hidden_size=target_hidden_size,
        num_features=len(layers) if layers else _num_features(config, path, columns),
        num_layers=num_layers(llama, tensors, path, 1),
        has_norm_before_residual=bool(config.get("norm_before_residual", nested.get("norm_before_residual"))),
        has_norm_before_fc=has("norm_before_fc", "input_norm.weight"),
        has_feature_norms=has("fc_norm", "fc_norm.0.weight"),
        has_norm_output=bool(config.get("norm_output", nested.get("norm_output"))),
        hidden_layers=layers,
    )


def _window(llama: Mapping[str, Any], path: Path) -> int | None:
    kinds = llama.get("layer_types") or [SLIDING if llama.get("use_sliding_window") else FULL]
    if not isinstance(kinds, list) or kinds[0] not in (FULL, SLIDING) or any(kind != kinds[0] for kind in kinds):
        raise CheckpointError(f"{path}: layers of several or unknown types are not read, got {kinds!r}")
    return None if kinds[0] == FULL else sliding_window(llama, path)


def _num_features(config: Mapping[str, Any], path: Path, columns: int) -> int:
    return positive_int(config, "num_aux_hidden_states", path, columns, limit=MAX_COUNT)


def _hidden_layers(config: Mapping[str, Any], nested: Any, path: Path) -> tuple[int, ...] | None:
    """Indices of `HiddenStates`; see the module's docstring."""
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"{path}: eagle_config must be an object, got {type(nested).__name__}")
    inputs, outputs = config.get(LAYER_IDS), nested.get(LAYER_IDS)
    ids, offset = (inputs, 0) if inputs else (outputs, 1)
    if not ids:
        return None
    return tuple(i + offset for i in layer_numbers(ids, LAYER_IDS, path))
