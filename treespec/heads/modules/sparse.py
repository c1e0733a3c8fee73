"""Attention in training, where masks are mostly empty: one product over the context, another over the draft's tokens.

Stacked queries are [B, G, g F, d]: F per query head, in the order of the query heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AnchoredAttention:
    """Each block sees part of the context, and itself. The keys are [context; blocks].

    Args:
        context: bool [B, F, T], which of the context's keys a query sees.
        size: Q.
        is_causal: a position sees no later one of its block.
    """

    context: Tensor
    size: int
    is_causal: bool = False

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Attention outputs of stacked queries over keys and values [B, G, S, d]; see `Mask`."""
        num_context = self.context.shape[2]
        size = self.size
        sizes = [num_context, keys.shape[2] - num_context]
        (context_keys, own_keys), (context_values, own_values) = keys.split(sizes, 2), values.split(sizes, 2)
        share = queries.shape[2] // sizes[1]
        queries = queries * queries.shape[3] ** -0.5
        scores = _masked(torch.matmul(queries, context_keys.transpose(2, 3)), self.context, share)
        blocks = _by_block(queries, share, size)
        own = torch.matmul(blocks, _of_blocks(own_keys, size).transpose(3, 4))
        if self.is_causal:
            later = torch.ones(size, size, dtype=torch.bool, device=own.device).triu(1)
            own = own.masked_fill(later.repeat(share, 1), -torch.inf)
        shares = shares_of(torch.cat([scores, _by_head(own, share)], -1), sinks)
        in_context, in_block = shares.split([num_context, size], -1)
        mixed = torch.matmul(_by_block(in_block, share, size), _of_blocks(own_values, size))
        return torch.matmul(in_context, context_values) + _by_head(mixed, share)


@dataclass(frozen=True)
class UnrolledAttention:
    """Step i of an unrolled text: a query at t sees the first step's keys up to t, and the later steps' keys at t.

    The keys are those of all steps, concatenated; each step has one token less than the one before.

    Args:
        step: i.
        num_tokens: T, of the first step.
    """

    step: int
    num_tokens: int

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Attention outputs of stacked queries over keys and values [B, G, S, d]; see `Mask`."""
        length = self.num_tokens - self.step
        device = queries.device
        sizes = [self.num_tokens - i for i in range(self.step + 1)]
        (first_keys, *own_keys), (first_values, *own_values) = keys.split(sizes, 2), values.split(sizes, 2)
        share = queries.shape[2] // length
        queries = queries * queries.shape[3] ** -0.5
        seen = torch.ones(length, self.num_tokens, dtype=torch.bool, device=device).tril().unsqueeze(0)
        scores = [_masked(torch.matmul(queries, first_keys.transpose(2, 3)), seen, share)]
        scores += [(queries * k[:, :, :length].repeat(1, 1, share, 1)).sum(-1, keepdim=True) for k in own_keys]
        shares = shares_of(torch.cat(scores, -1), sinks)
        mixed = torch.matmul(shares[..., : self.num_tokens], first_values)
        for column, own in enumerate(own_values, start=self.num_tokens):
            mixed = mixed + shares[..., column : column + 1] * own[:, :, :length].repeat(1, 1, share, 1)
        return mixed


def shares_of(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The share of every key from scores [B, G, g F, S]; what sinks [1, G, g F, 1] take is left out."""
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat([scores, sinks.to(scores).expand(*scores.shape[:-1], 1)], -1).softmax(-1)[..., :-1]


def _masked(scores: Tensor, seen: Tensor, share: int) -> Tensor:
    """Scores [B, G, g F, T] where `seen` [B or 1, F, T] is True, else minus infinity."""
    penalty = torch.zeros(seen.shape, dtype=scores.dtype, device=scores.device).masked_fill_(~seen, -torch.inf)
    return scores + penalty.repeat(1, share, 1).unsqueeze(1)


def _by_block(rows: Tensor, share: int, size: int) -> Tensor:
    """[B, G, g U Q, ...] to [B, G, U, g Q, ...]."""
    num_rows, num_heads, _, width = rows.shape
    parts = rows.view(num_rows, num_heads, share, -1, size, width).transpose(2, 3)
    return parts.reshape(num_rows, num_heads, -1, share * size, width)


def _by_head(blocks: Tensor, share: int) -> Tensor:
    """The inverse of `_by_block`."""
    num_rows, num_heads, num_blocks, rows, width = blocks.shape
    parts = blocks.view(num_rows, num_heads, num_blocks, share, rows // share, width).transpose(2, 3)
    return parts.reshape(num_rows, num_heads, -1, width)


def _of_blocks(keys: Tensor, size: int) -> Tensor:
    """[B, G, U Q, d] to [B, G, U, Q, d]."""
    return keys.reshape(*keys.shape[:2], -1, size, keys.shape[3])
