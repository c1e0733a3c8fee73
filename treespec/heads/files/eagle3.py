"""Configurations of EAGLE-3 heads: SafeAILab's (SGLang's and SpecForge's too) and the speculators library's.

The former keep llama's keys at the top of `config.json` and name the layer `midlayer.*`; the latter keep them in
`transformer_layer_config` and name it `layers.0.*`. Both map a reduced vocabulary by `d2t`: target id = draft id +
d2t[draft id].

Which hidden states are fused: a top-level `eagle_aux_hidden_state_layer_ids` (speculators, vLLM) counts layer *inputs*,
so an id is an index of transformers' `hidden_states`; the default is [2, L // 2, L - 3]. The ids inside `eagle_config`
(SpecForge, SGLang) count layer *outputs*: the default there is [1, L // 2 - 1, L - 4], the same three states.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from treespec.heads.files.config import FULL, MAX_COUNT, SLIDING, ConfigReader, layer_config, layer_windows, llama_keys
from treespec.heads.modules.eagle3 import Eagle3Config

OWN_TENSORS = ("fc.weight", "d2t", "t2d", "layers.0.hidden_norm.weight")
"""Tensors that no plain model has."""
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def eagle3_config(config: ConfigReader, tensors: Mapping[str, Tensor]) -> Eagle3Config:
    """The head's shape, with norms where the configuration or else the tensors have them. Raises: CheckpointError."""
    llama, nested = llama_keys(config), config.nested("eagle_config")
    windows = layer_windows(llama, [SLIDING if llama.get("use_sliding_window") else FULL])
    if len(set(windows)) > 1:
        raise llama.error("layer_types", "one type for all layers")
    layer = replace(layer_config(llama, tensors), window=windows[0])
    vocab_size = llama.integer("vocab_size")
    target_hidden_size = config.integer("target_hidden_size", layer.hidden_size)
    hidden_layers = config.layers(LAYER_IDS) or tuple(i + 1 for i in nested.layers(LAYER_IDS))
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
