"""EAGLE's draft head (Li et al. 2024, arXiv 2401.15077), that of EAGLE-2 and HASS too, which train or use it otherwise.

A linear map fuses the embedding of the token at t + 1 with the target's last hidden state at t, which the output layer
reads. Decoder layers make of them a guess of the state at t + 1, without a last norm: the target's own output layer
reads it, and deeper in a draft the head does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treespec.heads.modules.base import DraftHead, HeadConfig
from treespec.heads.modules.layers import DecoderLayer, KeyValueCache, Mask


@dataclass(frozen=True)
class EagleConfig(HeadConfig):
    """The shape of an EAGLE head; see `HeadConfig`."""

    num_layers: int = 1
    has_fusion_bias: bool = False

    algorithm = "eagle"
    reads_last_state = True


class EagleHead(DraftHead[EagleConfig]):
    """The head as a module; see `DraftHead` for the arguments."""

    def __init__(self, config: EagleConfig, embedding: Tensor, target_ids: Tensor) -> None:
        layers = [DecoderLayer(config.layer, index) for index in range(config.num_layers)]
        layers[0].input_layernorm = nn.Identity()
        super().__init__(config, embedding, target_ids, layers)
        size = config.layer.hidden_size
        self.fc = nn.Linear(size + config.target_hidden_size, size, bias=config.has_fusion_bias)
        self.norm = nn.Identity()

    def run(self, tokens: Tensor, states: Tensor, positions: Tensor, mask: Mask, cache: KeyValueCache) -> Tensor:
        """Guesses [B, F, H] of the target's states at tokens int64 [B, F], from the states before them [B, F, H].

        Args:
            positions: int64 [B or 1, F].
            mask: bool [B or 1, 1, F, S], True where one of the cache's S keys is attended; see `Mask`.
            cache: holds the keys of earlier passes, and gets this one's.
        """
        rotation = self.rotary(positions, states.dtype)
        states = self.fc(torch.cat([nn.functional.embedding(tokens, self.embedding), states], -1))
        for layer in self.layers:
            states = layer(states, rotation, mask, cache)
        return states

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [B, F, H], which `run` reads as they are."""
        return states

    def read(self, states: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits [B, F, W] of outputs [B, F, H] of `run`, and those: the next states; `rows`: see `logits`."""
        return self.logits(states, rows), states
