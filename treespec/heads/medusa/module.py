"""Medusa heads (Cai et al. 2024): small networks on the target's last hidden state, one per depth of the draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from treespec.errors import CheckpointError


@dataclass(frozen=True)
class MedusaHead:
    """One head: residual blocks x + SiLU(weight x + bias), then a linear map to the vocabulary."""

    blocks: tuple[tuple[Tensor, Tensor | None], ...]  # Weight [H, H] and bias [H] or None, of each.
    output: Tensor  # [W, H]

    def logits(self, features: Tensor) -> Tensor:
        """float [B, W] from the target's last hidden states [B, H]."""
        for weight, bias in self.blocks:
            features = features + silu(linear(features, weight, bias))
        return linear(features, self.output)

    def to(self, device: torch.device, dtype: torch.dtype) -> MedusaHead:
        """A copy on this device and of this dtype."""
        blocks = tuple(
            (weight.to(device, dtype), None if bias is None else bias.to(device, dtype)) for weight, bias in self.blocks
        )
        return MedusaHead(blocks, self.output.to(device, dtype))


@dataclass(frozen=True)
class MedusaHeads:
    """All heads of a target: head i scores the token i + 2 positions after the feature's."""

    heads: tuple[MedusaHead, ...]
    token_map: Tensor | None = None
    """int64 [W], the token of every row of the heads' outputs; None where they score the whole vocabulary."""

    def __post_init__(self) -> None:
        """Raises `CheckpointError`: no head, heads of different or impossible shapes, or a wrong `token_map`."""
        if not self.heads:
            raise CheckpointError("there is no Medusa head: a checkpoint needs at least one")
        if self.heads[0].output.ndim != 2:
            raise CheckpointError(f"a Medusa head's output must be [W, H], got {list(self.heads[0].output.shape)}")
        width, hidden = self.heads[0].output.shape
        for number, head in enumerate(self.heads):
            biases = [bias for _, bias in head.blocks if bias is not None]
            shapes = [list(tensor.shape) for tensor in (*(weight for weight, _ in head.blocks), *biases, head.output)]
            expected = [[hidden, hidden]] * len(head.blocks) + [[hidden]] * len(biases) + [[width, hidden]]
            if shapes != expected:
                raise CheckpointError(f"Medusa head {number} has tensors of shapes {shapes}, expected {expected}")
        ids = self.token_map
        if ids is not None and (ids.shape != (width,) or bool((ids < 0).any()) or len(ids.unique()) < width):
            raise CheckpointError(f"token_map must be {width} different ids, none negative; got {list(ids.shape)}")

    @property
    def num_heads(self) -> int:
        return len(self.heads)

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.heads[0].output.shape[1]

    @property
    def num_scored(self) -> int:
        """W."""
        return self.heads[0].output.shape[0]

    def logits(self, head: int, features: Tensor, vocab_size: int) -> Tensor:
        """float [B, V] of one head; -inf for tokens that it does not score."""
        scores = self.heads[head].logits(features)
        if self.token_map is None:
            return scores
        full = scores.new_full((len(scores), vocab_size), -torch.inf)
        return full.index_copy(1, self.token_map, scores)

    def to(self, device: torch.device, dtype: torch.dtype) -> MedusaHeads:
        """A copy on this device and of this dtype."""
        token_map = None if self.token_map is None else self.token_map.to(device)
        return MedusaHeads(tuple(head.to(device, dtype) for head in self.heads), token_map)
