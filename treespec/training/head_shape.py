"""The shape of a head for a target: layers as wide as the target's, in llama's form whatever the target's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import CheckpointError, UnsupportedModelError
from treespec.heads.modules.layers import LayerConfig
from treespec.heads.modules.rotary import rope_settings
from treespec.hf.introspect import num_logits

DEFAULT_THETA = 10000.0


def head_sizes(model: PreTrainedModel, draft_vocab_size: int, hidden_layers: Sequence[int]) -> dict[str, Any]:
    """The arguments that the configurations of all heads have in common.

    Raises:
        UnsupportedModelError: the target's embedding or output head is of another width than its hidden states, or its
            attention heads are of an odd size.
    """
    layer = head_layer(model)
    _check_fit(model, layer)
    return {
        "layer": layer,
        "vocab_size": num_logits(model),
        "draft_vocab_size": draft_vocab_size,
        "target_hidden_size": layer.hidden_size,
        "num_features": len(hidden_layers),
        "hidden_layers": tuple(hidden_layers),
    }


def head_layer(model: PreTrainedModel) -> LayerConfig:
    """The shape of a decoder layer."""
    text = model.config.get_text_config()
    intermediate_size = getattr(text, "intermediate_size", None)
    return LayerConfig(
        hidden_size=text.hidden_size,
        intermediate_size=intermediate_size if isinstance(intermediate_size, int) else 4 * text.hidden_size,
        num_heads=text.num_attention_heads,
        num_key_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        norm_eps=getattr(text, "rms_norm_eps", None) or 1e-6,
        rope=_rope(text),
        max_positions=getattr(text, "max_position_embeddings", None) or 2048,
    )


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """The hidden states that a head fuses: EAGLE-3's (2, L // 2, L - 3), or what a shallow model has; each once."""
    if num_layers >= 6:
        return tuple(sorted({2, num_layers // 2, num_layers - 3}))
    return tuple(sorted({0, num_layers // 2, num_layers - 1}))


def _check_fit(model: PreTrainedModel, layer: LayerConfig) -> None:
    kind = type(model).__name__
    widths = {"embedding": model.get_input_embeddings(), "output head": model.get_output_embeddings()}
    for name, module in widths.items():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.shape[1] != layer.hidden_size:
            raise UnsupportedModelError(
                f"{kind}'s {name} is {weight.shape[1]} wide where its hidden states are {layer.hidden_size}, and a "
                "draft head needs one width for both"
            )
    if layer.head_dim % 2:
        raise UnsupportedModelError(
            f"{kind} has attention heads of size {layer.head_dim}, and a head's rotary positions need an even size"
        )


def _rope(text: Any) -> dict[str, Any]:
    """The target's own rotary settings, or the default ones where a head cannot have them."""
    default = {"rope_type": "default", "rope_theta": DEFAULT_THETA}
    try:
        settings = rope_settings(text.to_dict())
    except CheckpointError:
        return default
    return settings if settings.get("rope_theta") else settings | {"rope_theta": DEFAULT_THETA}
