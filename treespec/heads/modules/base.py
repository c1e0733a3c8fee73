"""The base of draft heads on a target's hidden states: `fc` that fuses those, layers, a norm and an output layer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from treespec.heads.modules.layers import LayerConfig


@dataclass(frozen=True)
class HeadConfig:
    """The part of a head's shape that all kinds have."""

    layer: LayerConfig
    vocab_size: int  # V
    draft_vocab_size: int  # W
    target_hidden_size: int
    num_features: int  # Hidden states of the target that are fused: Y = num_features * target_hidden_size.
    hidden_layers: tuple[int, ...] | None = field(default=None, kw_only=True)
    """The target's hidden states that are fused, see `HiddenStates`; None: EAGLE-3's choice."""

    algorithm: ClassVar[str]
    """The name of such a head in the speculators library and in vLLM."""
    reads_last_state: ClassVar[bool] = False
    """Whether the state that is read is always the target's last one, after its norm."""


Config = TypeVar("Config", bound=HeadConfig)


class StateReader(nn.Module):
    """Base of modules that draft from hidden states of the target, with the attributes that drafters read.

    Attributes:
        config: with `vocab_size`, the target's, and `num_features`, the number of states that are read.
        target_ids: int64 [W], the target's id of every draft id.
    """

    config: Any
    target_ids: Tensor


class DraftHead(StateReader, Generic[Config]):
    """A head as a module, for drafting and for training; subclasses build its layers.

    Args:
        embedding: [V, H], the target's or the checkpoint's own; frozen, and not in the state dict.
        target_ids: int64 [W], the target's id of every draft id.
    """

    embedding: Tensor

    def __init__(self, config: Config, embedding: Tensor, target_ids: Tensor, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        layer = config.layer
        self.config: Config = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.fc: nn.Linear = nn.Linear(config.num_features * config.target_hidden_size, layer.hidden_size, bias=False)
        self.layers = nn.ModuleList(layers)
        self.norm: nn.Module = layer.norm()
        self.lm_head = nn.Linear(layer.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary = layer.rotary()
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.register_buffer("target_ids", target_ids, persistent=False)

    def logits(self, outputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """The output layer's logits [..., W] of outputs [..., H], then those of further output rows [n, H]."""
        own = self.lm_head(outputs)
        return own if rows is None else torch.cat([own, nn.functional.linear(outputs, rows)], -1)
