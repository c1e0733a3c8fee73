"""Readers of the configuration keys that all heads share; errors name the file, the key, what was expected and found.

The authors' files (SafeAILab, SGLang, SpecForge, z-lab, DeepSpec) keep the layers' keys at the top; the speculators
library's keep them in `transformer_layer_config`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.modules.layers import ACTIVATIONS, LayerConfig
from treespec.heads.modules.rotary import rope_settings

MAX_SIZE, MAX_COUNT = 2**24, 2**10
"""Upper bounds of a head's sizes and counts: without them a damaged file could ask for any amount of memory."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""The values of `layer_types` that are supported."""

EAGLE3_LAYERS, DFLASH_LAYERS = "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"
NESTED_LAYERS = "transformer_layer_config"
FIRST_SLIDING = 28
"""Transformers' default of `max_window_layers`."""


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


def config_in(folder: Path) -> dict[str, Any]:
    """The configuration in a folder, empty where there is none; for errors see `read_config`."""
    return read_config(folder / "config.json") if (folder / "config.json").is_file() else {}


@dataclass(frozen=True)
class ConfigReader:
    """The values of a configuration by type; every method raises `CheckpointError` for a value of another type.

    `path` is of the file, for messages; null in `values` counts as absent.
    """

    path: Path
    values: Mapping[str, Any]

    def __iter__(self) -> Iterator[str]:
        """The keys with a value."""
        return (key for key, value in self.values.items() if value is not None)

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

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def factor(self, key: str) -> float:
        """A finite number above zero, 1 where it is absent."""
        value = self.get(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.error(key, "a number above zero")
        return float(value)

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
    return config.nested(NESTED_LAYERS) if config.get(NESTED_LAYERS) is not None else config


def merged(*readers: ConfigReader) -> ConfigReader:
    """The keys of several sections of a configuration; the last one that has a value gives it."""
    return ConfigReader(readers[0].path, {key: reader.values[key] for reader in readers for key in reader})


def layer_config(llama: ConfigReader, tensors: Mapping[str, Tensor]) -> LayerConfig:
    """The layers' shape in llama's keys, with biases and norms where the file has tensors for them."""
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
        has_sinks="layers.0.self_attn.attention_sink_bias" in tensors,
        activation=_activation(llama),
    )


def _activation(llama: ConfigReader) -> str:
    """The MLP's; Gemma's key for it wins, as in transformers."""
    key = "hidden_activation" if llama.get("hidden_activation") is not None else "hidden_act"
    llama.require(key, *ACTIVATIONS)
    return llama.get(key, "silu")


def layer_kinds(llama: ConfigReader, count: int) -> list[str]:
    """`FULL` or `SLIDING` of every layer; where `layer_types` is absent, of `count` layers as Qwen3's class says."""
    kinds = llama.get("layer_types")
    if not kinds and kinds != 0:
        has_window = llama.flag("use_sliding_window") and llama.get("sliding_window") is not None
        first = llama.integer("max_window_layers", FIRST_SLIDING, least=0) if has_window else count
        return [FULL if i < first else SLIDING for i in range(count)]
    if not isinstance(kinds, list) or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise llama.error("layer_types", f"a list of {FULL!r} and {SLIDING!r}")
    return kinds


def one_window(llama: ConfigReader, count: int) -> int | None:
    """The window of layers that all have one or none. Raises `CheckpointError`: layers of both types."""
    kinds = set(layer_kinds(llama, count))
    if len(kinds) > 1:
        raise llama.error("layer_types", "one type for all layers")
    return window_size(llama) if kinds == {SLIDING} else None


def window_size(llama: ConfigReader, key: str = "sliding_window") -> int:
    """How many positions a sliding layer sees; any number beyond every text is possible."""
    return min(llama.integer(key, most=math.inf), MAX_SIZE)
