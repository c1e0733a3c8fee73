"""The shape of a DFlash or DFlash 2 (z-lab) or DSpark (DeepSpec) head from `config.json`.

The authors keep Qwen3's keys and DSpark's at the top and DFlash's own in `dflash_config`; `target_layer_ids` count
layer *outputs*, from zero: hidden_states[id + 1]. The speculators library's `aux_hidden_state_layer_ids` are indices
of hidden_states.

What is causal inside a block: `is_causal` or else `dflash_config.causal` says it for all layers (JetSpec's blocks).
Where neither does, layers with a sliding window are, unless `sliding_window_non_causal` or `use_swa` gave them the
window. That key is true where a DFlash file of the speculators library leaves it out, as in vLLM. Where it is false,
vLLM makes full layers causal too; here they are not, because the speculators library trains them so.

Where `sample_from_anchor` is absent, the anchor's position drafts in DSpark files of the authors and in no others, as
in vLLM. The output is multiplied before it is capped, as in SGLang.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from treespec.errors import ConfigError
from treespec.heads.dflash.module import DFlashConfig, Span
from treespec.heads.files.config import (
    DFLASH_LAYERS,
    EAGLE3_LAYERS,
    MAX_COUNT,
    SLIDING,
    ConfigReader,
    layer_kinds,
    window_size,
)
from treespec.heads.files.export import common_keys
from treespec.heads.files.keys import INERT, LAYER_KEYS, KindKeys, words

MARKOV_WEIGHT = "markov_head.markov_w1.weight"
SELECTOR = "candidate_selector."
MARKOV_TYPES = ("vanilla", "gated")

USED = words(
    f"""
    add_swa_attention_sink_bias attention_sink_bias attention_value_scale {DFLASH_LAYERS} block_size causal
    conv_group_size conv_kernel_size dflash_query_causal draft_vocab_size dspark_bonus_anchor dspark_markov_rank
    {EAGLE3_LAYERS} final_logit_softcapping input_embedding_scale is_causal lm_head_from_target logit_scale
    markov_head_type markov_rank mask_token_id num_target_layers output_multiplier sample_from_anchor selector_rank
    selector_top_k shift_label sliding_window_non_causal speculators_model_type swa_window_size target_hidden_size
    target_layer_ids use_swa
    """
)
KEYS = KindKeys(
    name="DFlash and DSpark",
    section="dflash_config",
    used=USED,
    inert={
        **{key: values for key, values in INERT.items() if key not in USED},
        "dspark_fixup_head_type": ("markov",),
        "projector_type": ("dflash", "dspark"),
        "pure_draft_prefix_len": (0, 1),
    },
    harmless=words("mask_token num_aux_hidden_states num_aux_layers pard_token"),
    layers=LAYER_KEYS | {"logit_scale"},
    factors={
        "attention_value_scale": r"layers\.\d+\.self_attn\.v_proj\.(weight|bias)",
        "logit_scale": r"markov_head\.markov_w2\.weight",
    },
)


def dflash_config(config: ConfigReader, tensors: Mapping[str, Tensor]) -> DFlashConfig:
    """See `HeadKind`."""
    llama, config, shape = KEYS.read(config, tensors)
    count = llama.integer("num_hidden_layers", most=len(tensors))
    hidden_layers = _hidden_layers(config, count)
    rank = _markov_rank(config, tensors)
    config.require("markov_head_type", *MARKOV_TYPES)
    cap = config.get("final_logit_softcapping", 0)
    sinks = config.flag("add_swa_attention_sink_bias", shape["layer"].has_sinks)
    shape["layer"] = replace(shape["layer"], has_sinks=config.flag("attention_sink_bias", sinks))
    return DFlashConfig(
        **shape,
        num_features=len(hidden_layers),
        hidden_layers=hidden_layers,
        block_size=config.integer("block_size", least=2, most=MAX_COUNT),
        mask_token=config.integer("mask_token_id", least=0, most=shape["vocab_size"] - 1),
        spans=_spans(config, llama, count),
        has_anchor_output=_has_anchor_output(config, rank),
        markov_rank=rank,
        has_markov_gate=config.get("markov_head_type") == "gated",
        has_mask_embedding="mask_embedding" in tensors,
        embedding_scale=config.factor("input_embedding_scale"),
        output_factor=config.factor("output_multiplier") * config.factor("logit_scale"),
        logit_cap=config.factor("final_logit_softcapping") if cap else None,
        **_of_dflash2(config, tensors, shape),
    )


def _of_dflash2(config: ConfigReader, tensors: Mapping[str, Tensor], shape: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of convolutions and of a selector, where the file has them."""
    found = {}
    size = shape["layer"].hidden_size
    keys = set(config)
    if "layers.0.attention_conv.base_kernel" in tensors or keys & {"conv_kernel_size", "conv_group_size"}:
        found["num_taps"] = config.integer("conv_kernel_size", most=config.integer("block_size"))
        found["group_size"] = config.integer("conv_group_size", most=size)
        if size % found["group_size"]:
            raise config.error("conv_group_size", f"a divisor of the hidden size {size}")
    if any(name.startswith(SELECTOR) for name in tensors) or keys & {"selector_rank", "selector_top_k"}:
        found["selector_rank"] = config.integer("selector_rank")
        found["num_candidates"] = config.integer("selector_top_k")
        if shape["draft_vocab_size"] != shape["vocab_size"]:
            raise config.error("draft_vocab_size", "the whole vocabulary, which DFlash 2's selector scores")
    return found


def is_meant(config: ConfigReader, tensors: Mapping[str, Tensor]) -> bool:
    """Whether files without a kind's name are of such a head."""
    return "dflash_config" in config.values or "block_size" in config.values


def dflash_keys(config: DFlashConfig, hidden_layers: Sequence[int]) -> dict[str, Any]:
    """The configuration of a head in the speculators library's format.

    Raises `ConfigError`: spans that the format cannot express.
    """
    names = {"dspark": "DSparkDraftModel", "dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
    architecture = names[config.algorithm]
    keys = common_keys(config, architecture, config.num_depths, [span.window for span in config.spans]) | {
        DFLASH_LAYERS: list(hidden_layers),
        "block_size": config.block_size,
        "mask_token_id": config.mask_token,
        "sample_from_anchor": config.has_anchor_output,
        "sliding_window_non_causal": not _is_causal(config),
    }
    return keys | _keys_of_additions(config)


def _keys_of_additions(config: DFlashConfig) -> dict[str, Any]:
    """The keys of what not every head has, as far as this one has it."""
    keys: dict[str, Any] = {"attention_sink_bias": True} if config.layer.has_sinks else {}
    if config.embedding_scale != 1:
        keys["input_embedding_scale"] = config.embedding_scale
    if config.output_factor != 1:
        keys["output_multiplier"] = config.output_factor
    if config.logit_cap is not None:
        keys["final_logit_softcapping"] = config.logit_cap
    if config.num_taps:
        keys |= {"conv_kernel_size": config.num_taps, "conv_group_size": config.group_size}
    if config.selector_rank:
        keys |= {"selector_rank": config.selector_rank, "selector_top_k": config.num_candidates}
    if config.algorithm == "dspark":
        keys |= {"markov_rank": config.markov_rank, "markov_head_type": MARKOV_TYPES[config.has_markov_gate]}
        keys |= {"enable_confidence_head": False, "confidence_head_with_markov": False}
    return keys


def _is_causal(config: DFlashConfig) -> bool:
    """Whether the layers with a window are causal; in this format those without one never are."""
    kinds = {span.is_causal for span in config.spans if span.window is not None}
    windows = {span.window for span in config.spans if span.window is not None}
    if len(kinds) > 1 or len(windows) > 1 or any(s.is_causal and s.window is None for s in config.spans):
        raise ConfigError(f"the speculators format has one window, and causal blocks only with it; got {config.spans}")
    return kinds == {True}


def _hidden_layers(config: ConfigReader, count: int) -> tuple[int, ...]:
    if inputs := config.layers(DFLASH_LAYERS) or config.layers(EAGLE3_LAYERS):
        return inputs
    outputs = config.layers("target_layer_ids") or _spread(config.integer("num_target_layers"), count)
    return tuple(i + 1 for i in outputs)


def _spread(num_target_layers: int, count: int) -> list[int]:
    """z-lab's choice of `count` layers: evenly from the second to the third from last, [1, 9, 17, 25, 33] of 36."""
    if count == 1:
        return [num_target_layers // 2]
    return [round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count)]


def _markov_rank(config: ConfigReader, tensors: Mapping[str, Tensor]) -> int:
    stored = tensors.get(MARKOV_WEIGHT)
    rank = 0 if stored is None or stored.ndim != 2 else stored.shape[1]
    return config.integer("markov_rank", config.integer("dspark_markov_rank", rank, least=0), least=0)


def _has_anchor_output(config: ConfigReader, rank: int) -> bool:
    is_speculators = config.get("speculators_model_type") is not None
    has_sign = "DSpark" in str(config.get("architectures")) or rank > 0
    default = has_sign and not is_speculators and not config.flag("dspark_bonus_anchor")
    return config.flag("sample_from_anchor", config.flag("shift_label", default))


def _spans(config: ConfigReader, llama: ConfigReader, count: int) -> tuple[Span, ...]:
    kinds = layer_kinds(llama, count)
    if len(kinds) != count:
        raise llama.error("layer_types", f"a list of {count} types")
    is_forced = config.flag("use_swa") and SLIDING not in kinds
    is_two_way = config.flag("sliding_window_non_causal", config.get("speculators_model_type") in ("dflash", "dflash2"))
    causal = next((key for key in ("is_causal", "causal", "dflash_query_causal") if config.get(key) is not None), None)

    def span(kind: str) -> Span:
        is_sliding = is_forced or kind == SLIDING
        is_causal = is_sliding and not is_forced and not is_two_way if causal is None else config.flag(causal)
        return Span(_window(config, llama) if is_sliding else None, is_causal)

    return tuple(map(span, kinds))


def _window(config: ConfigReader, llama: ConfigReader) -> int:
    own = config.get("swa_window_size")
    return window_size(llama) if own is None else window_size(config, "swa_window_size")
