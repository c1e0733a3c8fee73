"""The shape of an EAGLE-3 head from `config.json`.

SafeAILab's files (SGLang's and SpecForge's too) name the layer `midlayer.*`, the speculators library's `layers.0.*`.
Both map a reduced vocabulary by `d2t`: target id = draft id + d2t[draft id]. Which hidden states are fused: a top-level
`eagle_aux_hidden_state_layer_ids` (speculators, vLLM) counts layer *inputs*, so an id is an index of transformers'
`hidden_states`; the default is [2, L // 2, L - 3]. The ids inside `eagle_config` (SpecForge, SGLang) and
`target_layer_ids` (DeepSpec) count layer *outputs*: the default there is [1, L // 2 - 1, L - 4], the same three states.

An absent `norm_before_residual` is true in the speculators library's files and false in others, as in vLLM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from treespec.heads.eagle3.module import Eagle3Config
from treespec.heads.files.config import EAGLE3_LAYERS, MAX_COUNT, ConfigReader, one_window
from treespec.heads.files.export import common_keys
from treespec.heads.files.keys import INERT, LAYER_KEYS, KindKeys, words

OWN_TENSORS = ("fc.weight", "d2t", "t2d", "layers.0.hidden_norm.weight")
"""Tensors of EAGLE-3 heads that no plain model has."""

MASK_STATE = "mask_hidden"
"""P-EAGLE's tensor."""

KEYS = KindKeys(
    name="EAGLE-3",
    section="eagle_config",
    used=words(
        f"""
        draft_vocab_size {EAGLE3_LAYERS} fc_norm lm_head_from_target logit_scale norm_before_fc norm_before_residual
        norm_output num_aux_hidden_states num_aux_layers speculators_model_type target_hidden_size
        target_layer_ids truncated_vocab_size use_aux_norm
        """
    ),
    inert={
        **INERT,
        "is_causal": (True,),
        "parallel_draft_step": (1,),
        "parallel_drafting": (False,),
        "use_input_layernorm_in_first_layer": (True,),
        "use_last_layernorm": (True,),
        "use_mtp_layernorm": (False,),
    },
    harmless=words("eagle_decoder_type parallel_draft_heads_num_layers"),
    layers=LAYER_KEYS | {"logit_scale"},
    factors={"logit_scale": r"lm_head\.weight"},
)


def eagle3_config(config: ConfigReader, tensors: Mapping[str, Tensor]) -> Eagle3Config:
    """See `HeadKind`."""
    return Eagle3Config(**eagle3_shape(KEYS, config, tensors))


def eagle3_shape(keys: KindKeys, config: ConfigReader, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of `Eagle3Config`, with norms where the configuration or else the tensors have them."""
    llama, own, shape = keys.read(config, tensors)
    num_layers = llama.integer("num_hidden_layers", 1, most=len(tensors))
    shape["layer"] = replace(shape["layer"], window=one_window(llama, num_layers))
    if own.get("draft_vocab_size") is None:
        shape["draft_vocab_size"] = own.integer("truncated_vocab_size", shape["vocab_size"])
    outputs = own.layers(EAGLE3_LAYERS) or own.layers("target_layer_ids")
    hidden_layers = config.layers(EAGLE3_LAYERS) or tuple(i + 1 for i in outputs)
    return shape | {
        "num_features": len(hidden_layers) or _num_features(own, tensors, shape["target_hidden_size"]),
        "hidden_layers": hidden_layers or None,
        "num_layers": num_layers,
        "has_norm_before_residual": own.flag("norm_before_residual", own.get("speculators_model_type") is not None),
        "has_norm_before_fc": own.flag("norm_before_fc", "input_norm.weight" in tensors),
        "has_feature_norms": own.flag("fc_norm", own.flag("use_aux_norm", "fc_norm.0.weight" in tensors)),
        "has_norm_output": own.flag("norm_output"),
    }


def is_meant(config: ConfigReader, tensors: Mapping[str, Tensor]) -> bool:
    """Whether files without a kind's name are of such a head."""
    return bool(tensors.keys() & set(OWN_TENSORS)) and MASK_STATE not in tensors


def eagle3_keys(config: Eagle3Config, hidden_layers: Sequence[int]) -> dict[str, Any]:
    """The configuration of a head in the speculators library's format."""
    return common_keys(config, "Eagle3Speculator", 3, [config.layer.window] * config.num_layers) | {
        EAGLE3_LAYERS: list(hidden_layers),
        "norm_before_residual": config.has_norm_before_residual,
        "norm_before_fc": config.has_norm_before_fc,
        "fc_norm": config.has_feature_norms,
        "norm_output": config.has_norm_output,
    }


def _num_features(config: ConfigReader, tensors: Mapping[str, Tensor], target_hidden_size: int) -> int:
    fused = tensors.get("fc.weight")
    columns = 3 if fused is None or fused.ndim != 2 else max(fused.shape[1] // target_hidden_size, 1)
    given = config.integer("num_aux_layers", columns, most=MAX_COUNT)
    return config.integer("num_aux_hidden_states", given, most=MAX_COUNT)
