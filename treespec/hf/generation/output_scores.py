"""Scores and logits of the emitted tokens, for `return_dict_in_generate`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig

from treespec.engine.target_probs import TargetProbs


class OutputScores:
    """Collects, per row, the processed scores and raw logits behind every emitted token.

    Args:
        num_rows: rows of the caller's batch.
        prompt_length: P, padding included.
        has_scores: keep processed scores, float32 [V] a token.
        has_logits: keep raw logits, float32 [V] a token.
    """

    def __init__(self, num_rows: int, prompt_length: int, has_scores: bool, has_logits: bool) -> None:
        self._prompt_length = prompt_length
        self._scores: list[list[Tensor]] | None = [[] for _ in range(num_rows)] if has_scores else None
        self._logits: list[list[Tensor]] | None = [[] for _ in range(num_rows)] if has_logits else None

    @classmethod
    def for_config(cls, config: GenerationConfig, num_rows: int, prompt_length: int) -> OutputScores | None:
        """For the outputs that the caller asked for; None when these are none."""
        if not (config.return_dict_in_generate and (config.output_scores or config.output_logits)):
            return None
        return cls(num_rows, prompt_length, bool(config.output_scores), bool(config.output_logits))

    def __call__(self, row: int, probs: TargetProbs, index: int, path: tuple[int, ...]) -> None:
        """Record the nodes of an accepted path: each gave the token after it."""
        if self._scores is not None:
            self._scores[row] += [probs.scores(index, node) for node in path]
        if self._logits is not None:
            self._logits[row] += [probs.logits[index, node].to(torch.float32, copy=True) for node in path]

    def scores_of(self, row: int, length: int) -> tuple[Tensor, ...] | None:
        """The scores [1, V] of the row's new tokens up to `length` ids, as plain decoding passes them to criteria."""
        if self._scores is None:
            return None
        return tuple(s.unsqueeze(0) for s in self._scores[row][: length - self._prompt_length])

    def scores(self, lengths: Sequence[int]) -> tuple[Tensor, ...] | None:
        """One float32 [B, V] per position of rows that emitted `lengths[b]` tokens; zeros after a row's end."""
        return _stack(self._scores, lengths)

    def logits(self, lengths: Sequence[int]) -> tuple[Tensor, ...] | None:
        """As `scores`, before the processors."""
        return _stack(self._logits, lengths)


def _stack(rows: list[list[Tensor]] | None, lengths: Sequence[int]) -> tuple[Tensor, ...] | None:
    if rows is None:
        return None
    blank = torch.zeros_like(rows[0][0])
    return tuple(
        torch.stack([row[i] if i < length else blank for row, length in zip(rows, lengths, strict=True)])
        for i in range(max(lengths))
    )
