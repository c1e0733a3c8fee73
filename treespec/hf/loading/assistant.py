"""Gemma 4's assistants from files or loaded, fitted to their target."""

from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedModel

from treespec.errors import CheckpointError, ConfigError, UnsupportedModelError
from treespec.heads.assistant.drafter import Assistant
from treespec.heads.assistant.module import AssistantConfig, AssistantHead, SharedLayer
from treespec.heads.files.config import config_in
from treespec.hf.introspect import ModelFacts, model_facts
from treespec.hf.loading.formats import Format
from treespec.hf.loading.models import load_model

TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
SLIDING = "sliding_attention"


def is_assistant(source: Any) -> bool:
    """Whether a folder or a model is an assistant, by its configuration; False where there is none."""
    if isinstance(source, PreTrainedModel):
        return source.config.model_type in TYPES
    return isinstance(source, Path) and config_in(source).get("model_type") in TYPES


def load_assistant(
    source: str | Path | PreTrainedModel, target: PreTrainedModel, max_length: int | None = None
) -> Assistant:
    """The drafter of an assistant for `target`, in the target's dtype and on its device if it is loaded here.

    Raises:
        CheckpointError: it cannot be loaded, or belongs to another model.
        UnsupportedModelError: the installed transformers has no such models.
        ConfigError: an attention that takes no masks, or `max_length` is not a positive int.
    """
    facts = model_facts(target)
    assistant = source if isinstance(source, PreTrainedModel) else _load(str(source), facts)
    config = assistant.config.get_text_config()
    if config._attn_implementation not in ("eager", "sdpa"):
        raise ConfigError(
            f"the assistant's attention {config._attn_implementation!r} takes no masks: load it with "
            "attn_implementation='sdpa', or give load_drafter its folder"
        )
    sizes = (assistant.config.backbone_hidden_size, config.vocab_size)
    own = (facts.config.hidden_size, facts.config.vocab_size)
    if sizes != own:
        raise CheckpointError(
            f"the assistant {assistant.config.name_or_path} is for hidden states of {sizes[0]} numbers and {sizes[1]} "
            f"tokens, {facts.name} has {own[0]} and {own[1]}: it belongs to another model"
        )
    shape = AssistantConfig(config.vocab_size, own[0], _shared_layers(assistant, facts))
    return Assistant(AssistantHead(shape, assistant.eval(), facts.model.get_input_embeddings()), max_length)


def _load(name: str, facts: ModelFacts) -> PreTrainedModel:
    if not set(TYPES) & set(CONFIG_MAPPING):
        raise UnsupportedModelError(
            f"{name} holds a Gemma 4 assistant, which transformers {transformers.__version__} does not know: upgrade it"
        )
    attention = facts.config._attn_implementation
    implementation = attention if attention == "eager" else "sdpa"
    model: Any = load_model(name, dtype=facts.dtype, attn_implementation=implementation)
    return model.to(facts.device)


def _shared_layers(assistant: PreTrainedModel, facts: ModelFacts) -> dict[str, SharedLayer]:
    """The target's layers that the assistant attends: of every type the last one with keys and values of its own.

    Raises `CheckpointError`: the target has no layer of a type.
    """
    config, found = assistant.config.get_text_config(), {}
    types: list[str] = getattr(facts.config, "layer_types", None) or []
    owners = types[: len(types) - getattr(facts.config, "num_kv_shared_layers", 0)]
    layers: Any = assistant.get_submodule("model.layers")
    for kind, layer in zip(config.layer_types, layers, strict=True):
        if kind not in owners:
            raise CheckpointError(
                f"the assistant {assistant.config.name_or_path} attends a layer of type {kind}, which {facts.name} has "
                "not: it belongs to another model"
            )
        attention = layer.self_attn
        found[kind] = SharedLayer(
            len(owners) - 1 - owners[::-1].index(kind),
            config.num_attention_heads // attention.num_key_value_groups,
            attention.head_dim,
            # transformers counts the window from the last committed token, which is in it too.
            config.sliding_window + 1 if kind == SLIDING else None,
        )
    return found


FORMAT = Format(is_assistant, load_assistant)
