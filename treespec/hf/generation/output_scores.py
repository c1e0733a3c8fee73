"""Scores and logits of the emitted tokens, for `return_dict_in_generate`."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig

from treespec.engine.observer import Observer
from treespec.engine.target_probs import TargetProbs
from treespec.tree import Path


class OutputScores(Observer):
    """Collects what the caller asked for: the processed scores and the raw logits behind every emitted token.

    Args:
        config: of the call.
        num_rows: rows of the caller's batch.
        prompt_length: P, padding included.

    Attributes:
        kept: per row the float32 [V] of every token, under "scores" and "logits" where they are wanted.
    """

    def __init__(self, config: GenerationConfig, num_rows: int, prompt_length: int) -> None:
        self._prompt_length = prompt_length
        wanted = {"scores": config.output_scores, "logits": config.output_logits}
        names = [name for name, is_wanted in wanted.items() if is_wanted and config.return_dict_in_generate]
        self.kept: dict[str, list[list[Tensor]]] = {name: [[] for _ in range(num_rows)] for name in names}

    def on_path(self, row: int, probs: TargetProbs, index: int, path: Path) -> None:
        """Record the nodes of an accepted path: each gave the token after it."""
        if "scores" in self.kept:
            self.kept["scores"][row] += [probs.scores(index, node) for node in path]
        if "logits" in self.kept:
            self.kept["logits"][row] += [probs.logits[index, node].to(torch.float32, copy=True) for node in path]

    def scores_of(self, row: int, length: int) -> tuple[Tensor, ...] | None:
        """The scores [1, V] of the row's new tokens up to `length` ids, as plain decoding passes them to criteria."""
        if "scores" not in self.kept:
            return None
        return tuple(s.unsqueeze(0) for s in self.kept["scores"][row][: length - self._prompt_length])

    def stacked(self, name: str, lengths: Sequence[int]) -> tuple[Tensor, ...] | None:
        """One float32 [B, V] per position of rows that emitted `lengths[b]` tokens; zeros after a row's end."""
        if name not in self.kept:
            return None
        rows = self.kept[name]
        blank = torch.zeros_like(rows[0][0])
        return tuple(
            torch.stack([row[i] if i < length else blank for row, length in zip(rows, lengths, strict=True)])
            for i in range(max(lengths))
        )
