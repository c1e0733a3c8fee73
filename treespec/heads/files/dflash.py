"""Configurations of DFlash (z-lab) and DSpark (DeepSpec) heads, their authors' and the speculators library's.

The authors keep Qwen3's keys and DSpark's at the top of `config.json` and DFlash's own in `dflash_config`;
`target_layer_ids` count layer *outputs*, from zero: hidden_states[id + 1]. The speculators library keeps the layers in
`transformer_layer_config`; its `aux_hidden_state_layer_ids` are indices of hidden_states. Tensors have the same names.

Layers with a sliding window are causal inside a block in the speculators library unless `sliding_window_non_causal`,
and not in the authors' own code; `dflash_config.causal` makes all layers causal (JetSpec's blocks).
"""

from collections.abc import Mapping

from torch import Tensor

from treespec.heads.files.config import FULL, MAX_COUNT, ConfigReader, layer_config, layer_windows, llama_keys
from treespec.heads.modules.dflash import DFlashConfig, Span

LAYER_IDS = "aux_hidden_state_layer_ids"
MARKOV_WEIGHT = "markov_head.markov_w1.weight"


def dflash_config(config: ConfigReader, tensors: Mapping[str, Tensor]) -> DFlashConfig:
    """The head's shape. Raises: CheckpointError, a missing or wrong value, or a setting that is not supported."""
    llama = llama_keys(config)
    config = ConfigReader(config.path, {**config.values, **config.nested("dflash_config").values})
    config.require("projector_type", "dflash", "dspark")
    config.require("markov_head_type", "vanilla")
    layer, count = layer_config(llama, tensors), llama.integer("num_hidden_layers", most=len(tensors))
    vocab_size, hidden_layers = llama.integer("vocab_size"), _hidden_layers(config, count)
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
    if inputs := config.layers(LAYER_IDS):
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
