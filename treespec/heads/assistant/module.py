"""An assistant's pass, around the module that transformers has for it.

It attends the target's keys and values of the committed text, one layer of each type, and has none of its own. All
drafted tokens have the position of the root, and read no other drafted token but through their parent's output: so the
nodes of a level share one mask, and a tree is drafted as a chain is (transformers 5.24,
`SinglePositionMultiTokenCandidateGenerator`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from treespec.errors import CheckpointError
from treespec.heads.modules.base import StateReader
from treespec.tree.transfer import upload


@dataclass(frozen=True)
class SharedLayer:
    """The target's layer that an assistant's layers of one type attend.

    Args:
        index: the target's layer.
        num_key_heads, head_dim: G and d.
        window: how many tokens before the root are attended; None for all.
    """

    index: int
    num_key_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True)
class AssistantConfig:
    """The shape of an assistant; `layers` by the names of their types."""

    vocab_size: int
    hidden_size: int
    layers: Mapping[str, SharedLayer]
    num_features: int = 1


class SharedText(NamedTuple):
    """A committed text as an assistant reads it, by the types of its layers."""

    states: dict[str, tuple[Tensor, Tensor]]
    """Keys and values, each [B, G, S, d]."""
    masks: dict[str, Tensor]
    """[B, 1, 1, S], added to the scores."""
    positions: Int[Tensor, "B 1"]
    """The root's."""


class AssistantHead(StateReader):
    """An assistant with the target's embedding, which is not a submodule.

    Args:
        assistant: transformers' module: `pre_projection`, `model`, `post_projection`, and `lm_head` or
            `masked_embedding`.
        embedding: the target's, of tokens int64 [B, F]: [B, F, H].
    """

    config: AssistantConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: AssistantConfig, assistant: nn.Module, embedding: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.assistant: Any = assistant
        self._embedding = (embedding,)
        ids = torch.arange(config.vocab_size, device=assistant.get_parameter("pre_projection.weight").device)
        self.register_buffer("target_ids", ids, persistent=False)

    def read_text(self, cache: Any, slot_mask: Bool[Tensor, "B S"]) -> SharedText:
        """The committed text in the target's cache; `slot_mask` is on the host, False at holes.

        Raises `CheckpointError`: keys of another shape than the assistant attends.
        """
        num_slots, weight = slot_mask.shape[1], self.assistant.pre_projection.weight
        lengths = slot_mask.sum(1, keepdim=True)
        before_root = lengths - slot_mask.cumsum(1)  # Tokens between a slot's and the root.
        states, masks = {}, {}
        for name, layer in self.config.layers.items():
            held = cache.layers[layer.index]
            if (held.keys.shape[1], held.keys.shape[3]) != (layer.num_key_heads, layer.head_dim):
                raise CheckpointError(
                    f"the assistant attends {layer.num_key_heads} heads of {layer.head_dim} numbers in layers of type "
                    f"{name}, the target's layer {layer.index} has {held.keys.shape[1]} of {held.keys.shape[3]}: it "
                    "belongs to another model, or the model is split over processes"
                )
            states[name] = tuple(part[:, :, :num_slots].to(weight) for part in (held.keys, held.values))
            is_seen = slot_mask if layer.window is None else slot_mask & (before_root < layer.window)
            masks[name] = _added(is_seen, weight.dtype)
        positions, *copies = upload(self.target_ids.device, lengths, *masks.values())
        return SharedText(states, dict(zip(masks, copies, strict=True)), positions)

    def run(self, tokens: Int[Tensor, "B F"], states: Tensor, text: SharedText) -> tuple[Tensor, Tensor]:
        """Logits [B, F, V] after tokens, and what their children read, from the states [B, F, H] before them."""
        embedded = self._embedding[0](tokens).to(states)
        hidden = self.assistant.model(
            inputs_embeds=self.assistant.pre_projection(torch.cat([embedded, states], -1)),
            attention_mask=text.masks,
            position_ids=text.positions.expand(-1, tokens.shape[1]),
            shared_kv_states=text.states,
            use_cache=False,
            logits_to_keep=None,  # An int, 0 too, makes transformers 5.24 cut per-layer inputs that there are none of.
        ).last_hidden_state
        clustered = self.assistant.masked_embedding
        head = self.assistant.lm_head
        logits = head(hidden) if clustered is None else clustered(hidden, head.weight)
        return logits, self.assistant.post_projection(hidden)


def _added(is_seen: Bool[Tensor, "B S"], dtype: torch.dtype) -> Float[Tensor, "B 1 1 S"]:
    """A mask in the form that every attention of transformers reads; rows without text attend everything.

    There always is one: without it several queries would be taken for a text, each to attend those before it.
    """
    is_seen = is_seen | ~is_seen.any(1, keepdim=True)
    mask = torch.zeros(is_seen.shape, dtype=dtype, device="cpu").masked_fill_(~is_seen, torch.finfo(dtype).min)
    return mask[:, None, None]
