"""Which masks a model's layers take, read from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from treespec.errors import UnsupportedModelError
from treespec.hf.attention.folded import plain_implementation

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MASK_IMPLEMENTATIONS = ("sdpa", "eager", "flex_attention")


class Reach(NamedTuple):
    """How far back a layer attends: to the start, over `size` positions, or to the start of a chunk of `size`."""

    kind: Literal["full", "sliding", "chunked"]
    size: int = 0


@dataclass(frozen=True)
class AttentionLayout:
    """Which masks a model takes: the reach of every layer type, or of all layers under the one key None."""

    implementation: str
    reaches: dict[str | None, Reach]


def attention_layout(config: PreTrainedConfig) -> AttentionLayout:
    """Read from a model's configuration which masks its layers take.

    Raises:
        UnsupportedModelError: an attention implementation without free masks (flash attention), or a layer type
            that is not attention over all cached tokens (recurrent, compressed).
    """
    text = config.get_text_config()
    implementation = plain_implementation(text)
    if implementation not in MASK_IMPLEMENTATIONS:
        raise UnsupportedModelError(
            f"attention implementation {implementation!r} takes no tree mask: load the model with one of "
            f"attn_implementation={MASK_IMPLEMENTATIONS}, or verify chains"
        )
    types = getattr(text, "layer_types", None)
    if types is None:
        return AttentionLayout(implementation, {None: _common_reach(text)})
    return AttentionLayout(implementation, {name: _reach(name, text) for name in dict.fromkeys(types)})


def _common_reach(text: PreTrainedConfig) -> Reach:
    window = getattr(text, "sliding_window", None)
    if window is not None:
        return Reach("sliding", window)
    chunk = getattr(text, "attention_chunk_size", None)
    return Reach("full") if chunk is None else Reach("chunked", chunk)


def _reach(layer_type: str, text: PreTrainedConfig) -> Reach:
    if layer_type == "full_attention":
        return Reach("full")
    if layer_type == "sliding_attention":
        return Reach("sliding", text.sliding_window)
    if layer_type == "chunked_attention":
        return Reach("chunked", text.attention_chunk_size)
    raise UnsupportedModelError(f"layers of type {layer_type!r} take no tree mask: this model cannot score trees")
