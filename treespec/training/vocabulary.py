"""A reduced draft vocabulary: the tokens that a target's own texts use most (FR-Spec, Zhao et al. 2025).

Axis letters: N tokens, K candidates, V the target's vocabulary, W the draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def choose_vocabulary(tokens: Tensor, top: Tensor, vocab_size: int, size: int) -> Tensor:
    """The `size` most frequent tokens, ascending, int64 [W]; ties go to those that are more often among the probable.

    Args:
        tokens: int64 [N], of all texts.
        top: int [N, K], probable next tokens, -1 where there are none.
        vocab_size: V; a `size` of V or more gives all tokens.
    """
    if size >= vocab_size:
        return torch.arange(vocab_size)
    counts = tokens.bincount(minlength=vocab_size)
    probable = top[top >= 0].long().bincount(minlength=vocab_size)
    # Two stable sorts, the second criterion first.
    order = probable.argsort(descending=True, stable=True)
    order = order[counts[order].argsort(descending=True, stable=True)]
    return order[:size].sort().values


def draft_ids(target_ids: Tensor, vocab_size: int) -> Tensor:
    """int64 [V]: the draft id of every target id, -1 for those outside `target_ids` int64 [W]."""
    ids = torch.full((vocab_size,), -1, dtype=torch.int64, device=target_ids.device)
    ids[target_ids] = torch.arange(len(target_ids), device=target_ids.device)
    return ids


def coverage(tokens: Tensor, target_ids: Tensor) -> float:
    """The share of tokens int64 [N] that are in a vocabulary."""
    return float(torch.isin(tokens, target_ids).float().mean())


def unused_token(tokens: Tensor, vocab_size: int) -> int:
    """The last of the tokens that tokens int64 [N] use least."""
    counts = tokens.bincount(minlength=vocab_size)
    return int((counts == counts.min()).nonzero()[-1])
