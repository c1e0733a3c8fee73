"""The shapes of draft heads from `config.json`; errors name the file, the key, what was expected and what is there.

EAGLE-3: SafeAILab's files (SGLang's and SpecForge's too) keep llama's keys at the top and name the layer `midlayer.*`;
the speculators library's keep them in `transformer_layer_config` and name it `layers.0.*`. Both map a reduced
vocabulary by `d2t`: target id = draft id + d2t[draft id]. Which hidden states are fused: a top-level
`eagle_aux_hidden_state_layer_ids` (speculators, vLLM) counts layer *inputs*, so an id is an index of transformers'
`hidden_states`; the default is [2, L // 2, L - 3]. The ids inside `eagle_config` (SpecForge, SGLang) count layer
*outputs*: the default there is [1, L // 2 - 1, L - 4], the same three states.

DFlash (z-lab) and DSpark (DeepSpec): the authors keep Qwen3's keys and DSpark's at the top and DFlash's own in
`dflash_config`; `target_layer_ids` count layer *outputs*, from zero: hidden_states[id + 1]. The speculators library's
`aux_hidden_state_layer_ids` are indices of hidden_states. Layers with a sliding window are causal inside a block in
the speculators library unless `sliding_window_non_causal`, and not in the authors' own code; `dflash_config.causal`
makes all layers causal (JetSpec's blocks).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.modules.dflash import DFlashConfig, Span
from treespec.heads.modules.eagle3 import Eagle3Config
from treespec.heads.modules.layers import LayerConfig
from treespec.heads.modules.rotary import rope_settings

MAX_SIZE, MAX_COUNT = 2**24, 2**10
"""Upper bounds of a head's sizes and counts: without them a damaged file could ask for any amount of memory."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""The values of `layer_types` that are supported."""

EAGLE3_LAYERS, DFLASH_LAYERS = "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"
OWN_TENSORS = ("fc.weight", "d2t", "t2d", "layers.0.hidden_norm.weight")
"""Tensors of EAGLE-3 heads that no plain model has."""
MARKOV_WEIGHT = "markov_head.markov_w1.weight"


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object of a file. Raises `CheckpointError`: missing, damaged or not an object."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {path}: a head is a folder with config.json and *.safetensors") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): it is damaged or no JSON") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config


@dataclass(frozen=True)
class ConfigReader:
    """The values of a configuration by type; every method raises `CheckpointError` for a value of another type.

    `path` is of the file, for messages; null in `values` counts as absent.
    """

    path: Path
    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """Any value."""
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, least: int = 1, most: float = MAX_SIZE) -> int:
        """An int from `least` to `most`; without a default the key is required."""
        value = self.get(key, default)
        if type(value) is not int or not least <= value <= most:
            bound = "" if most == math.inf else f" and at most {most}"
            raise self.error(key, f"an int of at least {least}{bound}")
        return value

    def layers(self, key: str) -> tuple[int, ...]:
        """A list of layer numbers, empty where it is absent."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
            raise self.error(key, "a list of layer numbers")
        return tuple(value)

    def nested(self, key: str) -> ConfigReader:
        """An object of the configuration, empty where it is absent."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, "an object")
        return ConfigReader(self.path, value)

    def require(self, key: str, *supported: str) -> None:
        """The value must be absent or one of these."""
        if self.get(key, supported[0]) not in supported:
            raise self.error(key, f"{' or '.join(map(repr, supported))} to be supported")

    def error(self, key: str, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key} must be {expected}, got {self.values.get(key)!r}")


def llama_keys(config: ConfigReader) -> ConfigReader:
    """The keys of the layers: the speculators library nests them, others keep them at the top."""
    return config.nested("transformer_layer_config") if config.get("transformer_layer_config") is not None else config


def layer_config(llama: ConfigReader, tensors: Mapping[str, Tensor]) -> LayerConfig:
    """The layers' shape in llama's keys, with biases and norms where the file has tensors for them."""
    llama.require("hidden_act", "silu")
    hidden_size = llama.integer("hidden_size")
    num_heads = llama.integer("num_attention_heads")
    num_key_heads = llama.integer("num_key_value_heads", num_heads)
    head_dim = llama.integer("head_dim", hidden_size // num_heads)
    if num_heads % num_key_heads or head_dim % 2:
        got = f"{num_heads} heads, {num_key_heads} key heads of size {head_dim}"
        raise CheckpointError(f"{llama.path}: expected key heads that divide the heads and an even size, got {got}")
    norm_eps = llama.get("rms_norm_eps", 1e-6)
    if not isinstance(norm_eps, (int, float)):
        raise llama.error("rms_norm_eps", "a number")
    return LayerConfig(
        hidden_size=hidden_size,
        intermediate_size=llama.integer("intermediate_size"),
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        head_dim=head_dim,
        norm_eps=norm_eps,
        rope=rope_settings(llama.values),
        max_positions=llama.integer("max_position_embeddings", 2048),
        has_attention_bias="layers.0.self_attn.q_proj.bias" in tensors,
        has_output_bias="layers.0.self_attn.o_proj.bias" in tensors,
        has_mlp_bias="layers.0.mlp.gate_proj.bias" in tensors,
        has_head_norms="layers.0.self_attn.q_norm.weight" in tensors,
    )


def layer_windows(llama: ConfigReader, default: Sequence[str]) -> list[int | None]:
    """How many positions each layer of `layer_types` sees, None for all; any number beyond every text is possible."""
    kinds = llama.get("layer_types") or list(default)
    if not isinstance(kinds, list) or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise llama.error("layer_types", f"a list of {FULL!r} and {SLIDING!r}")
    if SLIDING not in kinds:
        return [None] * len(kinds)
    window = min(llama.integer("sliding_window", most=math.inf), MAX_SIZE)
    return [window if kind == SLIDING else None for kind in kinds]


def eagle3_config(config: ConfigReader, tensors: Mapping[str, Tensor]) -> Eagle3Config:
    """The head's shape, with norms where the configuration or else the tensors have them.

    Raises `CheckpointError`: a missing or wrong value, or a setting that is not supported.
    """
    llama = llama_keys(config)
    nested = config.nested("eagle_config")
    windows = layer_windows(llama, [SLIDING if llama.get("use_sliding_window") else FULL])
    if len(set(windows)) > 1:
        raise llama.error("layer_types", "one type for all layers")
    layer = replace(layer_config(llama, tensors), window=windows[0])
    vocab_size = llama.integer("vocab_size")
    target_hidden_size = config.integer("target_hidden_size", layer.hidden_size)
    hidden_layers = config.layers(EAGLE3_LAYERS) or tuple(i + 1 for i in nested.layers(EAGLE3_LAYERS))
    fused = tensors.get("fc.weight")
    columns = 3 if fused is None or fused.ndim != 2 else max(fused.shape[1] // target_hidden_size, 1)
    flags = ConfigReader(config.path, {**nested.values, **config.values})
    return Eagle3Config(
        layer=layer,
        vocab_size=vocab_size,
        draft_vocab_size=config.integer("draft_vocab_size", vocab_size),
        target_hidden_size=target_hidden_size,
        num_features=len(hidden_layers) or config.integer("num_aux_hidden_states", columns, most=MAX_COUNT),
        hidden_layers=hidden_layers or None,
        num_layers=llama.integer("num_hidden_layers", 1, most=len(tensors)),
        has_norm_before_residual=bool(flags.get("norm_before_residual")),
        has_norm_before_fc=bool(flags.get("norm_before_fc", "input_norm.weight" in tensors)),
        has_feature_norms=bool(flags.get("fc_norm", "fc_norm.0.weight" in tensors)),
        has_norm_output=bool(flags.get("norm_output")),
    )


def dflash_config(config: ConfigReader, tensors: Mapping[str, Tensor]) -> DFlashConfig:
    """The head's shape. Raises `CheckpointError`: a missing or wrong value, or a setting that is not supported."""
    llama = llama_keys(config)
    config = ConfigReader(config.path, {**config.values, **config.nested("dflash_config").values})
    config.require("projector_type", "dflash", "dspark")
    config.require("markov_head_type", "vanilla")
    layer = layer_config(llama, tensors)
    count = llama.integer("num_hidden_layers", most=len(tensors))
    vocab_size = llama.integer("vocab_size")
    hidden_layers = _hidden_layers(config, count)
    stored = tensors.get(MARKOV_WEIGHT)
    rank = config.integer("markov_rank", 0 if stored is None or stored.ndim != 2 else stored.shape[1], least=0)
    has_own_type = config.get("speculators_model_type") == "dspark" or "DSpark" in str(config.get("architectures"))
    is_anchored = config.get("sample_from_anchor", config.get("shift_label", has_own_type or rank > 0))
    return DFlashConfig(
        layer=layer,
        vocab_size=vocab_size,
        draft_vocab_size=config.integer("draft_vocab_size", vocab_size),
        target_hidden_size=config.integer("target_hidden_size", layer.hidden_size),
        num_features=len(hidden_layers),
        hidden_layers=hidden_layers,
        block_size=config.integer("block_size", least=2, most=MAX_COUNT),
        mask_token=config.integer("mask_token_id", least=0, most=vocab_size - 1),
        spans=_spans(config, llama, count),
        has_anchor_output=bool(is_anchored),
        markov_rank=rank,
    )


def _hidden_layers(config: ConfigReader, count: int) -> tuple[int, ...]:
    if inputs := config.layers(DFLASH_LAYERS):
        return inputs
    outputs = config.layers("target_layer_ids") or _spread(config.integer("num_target_layers"), count)
    return tuple(i + 1 for i in outputs)


def _spread(num_target_layers: int, count: int) -> list[int]:
    """z-lab's choice of `count` layers: evenly from the second to the third from last, [1, 9, 17, 25, 33] of 36."""
    if count == 1:
        return [num_target_layers // 2]
    return [round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count)]


def _spans(config: ConfigReader, llama: ConfigReader, count: int) -> tuple[Span, ...]:
    windows = layer_windows(llama, [FULL] * count)
    if len(windows) != count:
        raise llama.error("layer_types", f"a list of {count} types")
    is_causal = bool(config.get("causal"))
    is_speculators = config.get("speculators_model_type") is not None
    is_sliding_causal = is_causal or (is_speculators and not config.get("sliding_window_non_causal"))
    return tuple(Span(window, is_causal if window is None else is_sliding_causal) for window in windows)
