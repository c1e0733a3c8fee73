"""Picking one entry per row."""

from __future__ import annotations

from torch import Tensor


def at(values: Tensor, index: Tensor) -> Tensor:
    """`values[b, index[b]]`: values [B, M] and index int64 [B] to [B]."""
    return values.gather(1, index.unsqueeze(1)).squeeze(1)
