"""`RereadingScorer`: trees for models whose `generate` reads a text again once it is longer than a given length.

Phi-3 with longrope has other rope frequencies beyond `original_max_position_embeddings`: its own preparation drops the
cache when a text first exceeds them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.errors import TreespecError
from treespec.hf.introspect import ModelFacts
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.protocols import Scores


class RereadingScorer(TreeScorer):
    """A `TreeScorer` of one text, padding included, that it reads again where plain `generate` does.

    Args:
        length: of the longest text, in tokens, before it is read again. No tree may reach across it: see
            `last_length`.
        options: of `TreeScorer`.
    """

    def __init__(self, facts: ModelFacts, length: int, **options: Any) -> None:
        super().__init__(facts, **options)
        self.last_length, self._is_again = length, False
        self._ids = self._mask = torch.empty(1, 0, dtype=torch.int64, device="cpu")
        self._pending = torch.empty(1, 0, dtype=torch.int64, device="cpu")

    @torch.no_grad()
    def prefill(self, ids: Int[Tensor, "1 P"], mask: Bool[Tensor, "1 P"]) -> Scores:
        """See `TreeScorer`. Raises `TreespecError`: more than one row."""
        if len(ids) != 1:
            raise TreespecError(f"{self.facts.name} reads texts again one by one, got {len(ids)} rows")
        self._ids, self._mask, self._is_again = ids, mask, False
        return super().prefill(ids, mask)

    @torch.no_grad()
    def extend(self, tokens: Int[Tensor, "1 F"], parents: Int[Tensor, "1 F"]) -> Scores:
        """See `TreeScorer`; before the first token beyond `last_length` all of the text is read again."""
        if self._ids.shape[1] == self.last_length and not self._pending.shape[1]:
            self._is_again = True
            super().prefill(self._ids, self._mask)
        scores = super().extend(tokens, parents)
        self._pending = torch.cat([self._pending.to(tokens.device), tokens], dim=1)
        return scores

    @torch.no_grad()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        super().commit(paths)
        kept = self._pending[:, list(paths[0])].to(self._ids.device)
        self._ids = torch.cat([self._ids, kept], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(kept, dtype=torch.bool)], dim=1)
        self._pending = self._pending[:, :0]

    def _last_positions(self, lengths: Sequence[int]) -> Int[Tensor, "1 1"]:
        """Plain decoding reads a text again together with the token after it."""
        return super()._last_positions(lengths) + int(self._is_again)
