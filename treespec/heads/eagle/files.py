"""The shape of an EAGLE head from `config.json`.

SafeAILab's files keep the layers' keys at the top and have tensors `fc.*`, `layers.*` and `embed_tokens.weight`. The
speculators library's of the type "eagle" nest the keys, and call the tensors `fusion_fc.*` and `transformer.*`. Neither
has an output layer: it is the target's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from treespec.heads.eagle.module import EagleConfig
from treespec.heads.files.config import ConfigReader, one_window
from treespec.heads.files.export import common_keys
from treespec.heads.files.keys import INERT, LAYER_KEYS, KindKeys, words

KEYS = KindKeys(
    name="EAGLE",
    section=None,
    used=words(
        "draft_vocab_size fusion_bias lm_head_from_target logit_scale speculators_model_type target_hidden_size"
    ),
    inert={
        **INERT,
        "add_para_norm": (False,),
        # Norms around the layer: no source says whether a draft reads normed states.
        "layernorms": (False,),
        "transformer_layer_architecture": ("LlamaDecoderLayer",),
    },
    layers=LAYER_KEYS | {"logit_scale"},
    factors={"logit_scale": r"lm_head\.weight"},
)


def eagle_config(config: ConfigReader, tensors: Mapping[str, Tensor]) -> EagleConfig:
    """See `HeadKind`."""
    llama, own, shape = KEYS.read(config, tensors)
    num_layers = llama.integer("num_hidden_layers", 1, most=len(tensors))
    shape["layer"] = replace(shape["layer"], window=one_window(llama, num_layers))
    return EagleConfig(
        **shape, num_features=1, num_layers=num_layers, has_fusion_bias=own.flag("fusion_bias", "fc.bias" in tensors)
    )


def is_meant(config: ConfigReader, tensors: Mapping[str, Tensor]) -> bool:
    """Whether files without a kind's name are of such a head: its first layer norms no input, EAGLE-3's norms two."""
    norms = ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")
    return "fc.weight" in tensors and "d2t" not in tensors and not any(norm in tensors for norm in norms)


def eagle_keys(config: EagleConfig, hidden_layers: Sequence[int]) -> dict[str, Any]:
    """The configuration of a head in the speculators library's format; it always reads the last hidden state."""
    return common_keys(config, "EagleSpeculator", 3, [config.layer.window] * config.num_layers) | {
        "fusion_bias": config.has_fusion_bias,
        "layernorms": False,
    }
