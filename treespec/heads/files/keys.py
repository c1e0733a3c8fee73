"""The keys of a head's `config.json`: those that change its drafts, those that do not, and those that must not.

A key that is in no table here ends the load. An ignored setting costs acceptance and nobody learns why: the output
stays right, because the target checks every token.

The tables come from the readers of vLLM 0.33 and SGLang 0.5.23, and from published files.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.files.config import NESTED_LAYERS, ConfigReader, layer_config, llama_keys, merged
from treespec.heads.modules.rotary import ROPE_TYPES, rope_settings


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


LAYER_KEYS = words(
    """
    head_dim hidden_act hidden_activation hidden_size intermediate_size layer_types max_position_embeddings
    max_window_layers num_attention_heads num_hidden_layers num_key_value_heads partial_rotary_factor rms_norm_eps
    rope_parameters rope_scaling rope_theta sliding_window use_sliding_window vocab_size
    """
)
"""Keys that define a decoder layer's computation, by llama's names."""

HARMLESS_BY_REASON = {
    "names, versions, the dtype of the file, where code lies": """
    _commit_hash _name_or_path architectures attention_backend auto_map base_model base_model_name_or_path dtype
    library_name modal_type model_arch model_type name_or_path speculators_config speculators_version
    target_model_name_or_path target_model_type target_text_model_type torch_dtype transformers_version unsloth_version
    version
    """,
    "what the configuration classes of transformers and speculators write of themselves": """
    _attn_implementation _attn_implementation_autoset _auto_class add_cross_attention attn_implementation attribute_map
    auto_package base_config_key base_model_ep_plan base_model_pp_plan base_model_tp_plan chunk_size_feed_forward
    cross_attention_hidden_size finetuning_task has_no_defaults_at_init id2label is_composition is_decoder
    is_encoder_decoder keys_to_ignore_at_inference label2id model_config num_labels output_attentions
    output_hidden_states prefix problem_type pruned_heads registry_auto_discovery return_dict schema_discriminator
    sub_configs task_specific_params tf_legacy_loss tie_encoder_decoder tokenizer_class torchscript use_bfloat16
    use_cache use_return_dict
    """,
    "generation's defaults, which older versions wrote into every configuration": """
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_scores remove_invalid_values repetition_penalty return_dict_in_generate
    suppress_tokens temperature top_k top_p typical_p
    """,
    "training": """
    attention_dropout cod_retention confidence_head_alpha embed_requires_grad gradient_checkpointing initializer_range
    k_train loss_decay_gamma max_anchors num_anchors output_router_logits pretraining_tp router_aux_loss_coef
    train_embed_tokens train_meta ttt_length
    """,
    "what the tensors say by themselves, since one that is missing or not expected is an error": """
    attention_bias attention_head_dim bias confidence_head_with_markov decoder_sparse_step enable_confidence_head
    has_embed_tokens has_lm_head mlp_bias mlp_only_layers moe_intermediate_size norm_topk_prob num_experts
    num_experts_per_tok num_local_experts org_vocab_size qkv_bias tie_word_embeddings use_qk_norm v_head_dim
    """,
    "what targets' configurations say of classes, pools, caches shared by layers, images, ids of tokens": """
    add_classification_head cla_share_factor class_num dense_list im_end_id im_newline_id im_start_id mask_init_id
    pad_id pool_type text_end_id text_start_id use_mrope
    """,
}
HARMLESS = words(" ".join(HARMLESS_BY_REASON.values()))
"""Keys without effect on what a head of any kind drafts, besides ids of special tokens."""

ROPE_KEYS = ("rope_theta", "rope_type", "type", "partial_rotary_factor", "original_max_position_embeddings")
ROPE_HARMLESS = ("finetuned", "mrope_section", "mrope_interleaved")
"""In text all sections of M-RoPE turn by the token's position, so the plain embedding is the same."""

SPECIAL_TOKEN = ("_token_id", "_token_ids", "_token_index")

INERT: Mapping[str, tuple[Any, ...]] = {
    "add_full_attention_sink_bias": (False,),
    "add_swa_attention_sink_bias": (False,),
    "attention_mode": ("gqa",),
    "attention_sink_bias": (False,),
    "is_neox_style": (True,),
    "norm_type": ("rms",),
    "rope_is_neox_style": (True,),
    "use_aux_hidden_state": (True,),
    "use_cla": (False,),
    "use_gemma_norm": (False,),
    "use_rotary_pos_emb": (True,),
}
"""Settings that are served at these values only."""


class Sections(NamedTuple):
    """A head's configuration: its layers' keys, its own ones, and the fields of `HeadConfig` that they give."""

    llama: ConfigReader
    own: ConfigReader
    shape: dict[str, Any]


@dataclass(frozen=True)
class KindKeys:
    """The keys of one kind of head besides those of its layers.

    Args:
        name: the kind's, for messages.
        section: the object of the configuration that may hold the kind's own keys, which else are at the top.
        used: keys that change what the head drafts.
        inert: see `INERT`.
        harmless: keys without effect, besides `HARMLESS`.
        layers: keys of its layers.
        factors: settings that multiply what some tensors give, with a pattern of these tensors' names.
    """

    name: str
    section: str | None
    used: frozenset[str]
    inert: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: INERT)
    harmless: frozenset[str] = frozenset()
    layers: frozenset[str] = LAYER_KEYS
    factors: Mapping[str, str] = field(default_factory=dict)

    def is_harmless(self, key: str) -> bool:
        return key in HARMLESS or key in self.harmless or key.endswith(SPECIAL_TOKEN)

    def check(self, config: ConfigReader) -> None:
        """Raises `CheckpointError`: a key that is not known, or a setting that is not supported."""
        llama = llama_keys(config)
        own = self.used | self.inert.keys()
        sections = {"": (config, own | {NESTED_LAYERS, self.section} | (self.layers if llama is config else set()))}
        if llama is not config:
            sections[f"{NESTED_LAYERS}."] = (llama, self.layers | self.inert.keys())
        if self.section is not None:
            sections[f"{self.section}."] = (config.nested(self.section), own)
        for reader, _ in sections.values():
            for key, supported in self.inert.items():
                reader.require(key, *supported)
        unknown = [
            section + key
            for section, (reader, known) in sections.items()
            for key in reader
            if key not in known and not self.is_harmless(key)
        ]
        if unknown := sorted(unknown) + (unread_rope_keys(llama.values) if self.layers else []):
            raise CheckpointError(
                f"{config.path} has settings that are not known for {self.name} heads: {', '.join(unknown)}. Without "
                "them the head would draft worse than it was trained to: take out those without effect, ask for others"
            )

    def read(self, config: ConfigReader, tensors: Mapping[str, Tensor]) -> Sections:
        """The checked configuration by section, and what all kinds share. Raises `CheckpointError`: as `check` does."""
        self.check(config)
        llama, own = llama_keys(config), merged(config, *self._own_section(config))
        layer, vocab_size = layer_config(llama, tensors), llama.integer("vocab_size")
        shape = {
            "layer": layer,
            "vocab_size": vocab_size,
            "draft_vocab_size": own.integer("draft_vocab_size", vocab_size),
            "target_hidden_size": own.integer("target_hidden_size", layer.hidden_size),
        }
        return Sections(llama, own, shape)

    def folded(self, tensors: Mapping[str, Tensor], config: ConfigReader) -> dict[str, Tensor]:
        """The tensors with the factors in them, so that no pass needs to multiply; those without one are as given."""
        own = merged(llama_keys(config), config, *self._own_section(config))
        given = [(pattern, own.factor(key)) for key, pattern in self.factors.items()]
        return {
            name: times(tensor, math.prod(factor for pattern, factor in given if re.fullmatch(pattern, name)))
            for name, tensor in tensors.items()
        }

    def _own_section(self, config: ConfigReader) -> list[ConfigReader]:
        return [] if self.section is None else [config.nested(self.section)]


def unread_rope_keys(config: Mapping[str, Any]) -> list[str]:
    """The rope settings that the type does not read."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope_settings(config)["rope_type"]
    known = (*ROPE_KEYS, *ROPE_HARMLESS, *ROPE_TYPES.get(kind, given))
    return sorted(f"{key} of rope type {kind!r}" for key in given if given[key] is not None and key not in known)


def times(tensor: Tensor, factor: float) -> Tensor:
    """Narrow types are widened first: the product is rounded once, to the head's type."""
    return tensor if factor == 1 else factor * (tensor.float() if tensor.itemsize < 4 else tensor)
