"""Medusa heads (Cai et al. 2024): small networks on the target's last hidden state, one per depth of the draft."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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

    @cached_property
    def target_ids(self) -> Tensor:
        """int64 [W], the token of every row of the heads' outputs."""
        output = self.heads[0].output
        return torch.arange(len(output), device=output.device) if self.token_map is None else self.token_map

    def logits(self, features: Tensor, num_heads: int) -> Tensor:
        """float [B, num_heads, W] of the first heads."""
        return torch.stack([head.logits(features) for head in self.heads[:num_heads]], 1)

    def to(self, device: torch.device, dtype: torch.dtype) -> MedusaHeads:
        """The heads on this device and of this dtype, themselves if they are."""
        output = self.heads[0].output
        if output.dtype == dtype and output.device == device:
            return self
        token_map = None if self.token_map is None else self.token_map.to(device)
        return MedusaHeads(tuple(head.to(device, dtype) for head in self.heads), token_map)
