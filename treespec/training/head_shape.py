"""A draft head in its target's likeness: the shape of its layers, and the weights that they can start from."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import CheckpointError, UnsupportedModelError
from treespec.heads.modules.layers import LayerConfig
from treespec.heads.modules.rotary import rope_settings
from treespec.hf.models.layers import decoder_layers

DEFAULT_THETA = 10000.0


def head_layer(model: PreTrainedModel, has_head_norms: bool = False) -> LayerConfig:
    """Layers as wide as the target's, in llama's form whatever the target's own form is."""
    text = model.config.get_text_config()
    hidden_size, num_heads = text.hidden_size, text.num_attention_heads
    num_key_heads = getattr(text, "num_key_value_heads", None) or num_heads
    return LayerConfig(
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(text),
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        head_dim=getattr(text, "head_dim", None) or hidden_size // num_heads,
        norm_eps=getattr(text, "rms_norm_eps", None) or 1e-6,
        rope=_rope(text),
        max_positions=getattr(text, "max_position_embeddings", None) or 2048,
        has_head_norms=has_head_norms,
    )


def layer_weights(model: PreTrainedModel, num_layers: int) -> list[dict[str, Tensor]]:
    """The state of the target's last `num_layers` layers, the last one last; empty where there is no list of layers."""
    try:
        layers = decoder_layers(model)
    except UnsupportedModelError:
        return []
    return [dict(layer.state_dict()) for layer in list(layers)[-num_layers:]]


def final_norm(model: PreTrainedModel) -> Tensor | None:
    """The weight [H] of the norm before the output head; None where it is not found under its usual name."""
    weight = getattr(getattr(model.base_model, "norm", None), "weight", None)
    return weight if isinstance(weight, Tensor) else None


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """The hidden states that a head fuses: EAGLE-3's (2, L // 2, L - 3), or what a shallow model has; each once."""
    if num_layers >= 6:
        return tuple(sorted({2, num_layers // 2, num_layers - 3}))
    return tuple(sorted({0, num_layers // 2, num_layers - 1}))


def _intermediate_size(text: Any) -> int:
    found = getattr(text, "intermediate_size", None)
    return found if isinstance(found, int) else 4 * text.hidden_size


def _rope(text: Any) -> dict[str, Any]:
    """The target's own rotary settings where the head can have them."""
    try:
        settings = rope_settings(text.to_dict())
    except CheckpointError:
        return {"rope_type": "default", "rope_theta": DEFAULT_THETA}
    return settings if settings.get("rope_theta") else settings | {"rope_theta": DEFAULT_THETA}
