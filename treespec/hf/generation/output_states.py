"""Hidden states of the emitted tokens, for `output_hidden_states`."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.protocols import Capability, CausalScorer, Scores


class OutputStates:
    """A target's scorer that keeps the hidden states of every emitted token.

    Args:
        scorer: returns the hidden states of all `num_layers` layers, the embeddings counted.
        has_filled_cache: the first tokens of the prompt have no states, as in plain `generate`.
    """

    # The other scorer's, as all that is not here.
    capability: Capability
    vocab_size: int
    device: torch.device
    max_positions: int | None
    hidden_layers: tuple[int, ...]

    def __init__(self, scorer: CausalScorer, num_layers: int, has_filled_cache: bool) -> None:
        self._scorer, self._num_layers, self._has_filled_cache = scorer, num_layers, has_filled_cache
        self._states: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scorer, name)

    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> Scores:
        scores = self._scorer.prefill(ids, mask)
        self._rows = list(range(len(ids)))
        self._kept: list[list[Tensor]] = [[] for _ in self._rows]
        self._prompt = [scores.hidden_states[layer] for layer in range(self._num_layers)]
        if not self._has_filled_cache:  # Columns of nothing but padding were not computed.
            missing = ids.shape[1] - self._prompt[0].shape[1]
            self._prompt = [torch.nn.functional.pad(part, (0, 0, missing, 0)) for part in self._prompt]
        return scores

    def extend(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"]) -> Scores:
        scores = self._scorer.extend(tokens, parents)
        self._states.append(torch.stack([scores.hidden_states[layer] for layer in range(self._num_layers)], dim=2))
        return scores

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """The nodes of a path gave the tokens after them."""
        self._scorer.commit(paths)
        if self._states:
            nodes = torch.cat(self._states, dim=1)  # [B, N, layers, H]
            for index, (row, path) in enumerate(zip(self._rows, paths, strict=True)):
                self._kept[row] += nodes[index, list(path)]
        self._states = []

    def select_rows(self, rows: Sequence[int]) -> None:
        self._scorer.select_rows(rows)
        self._rows = [self._rows[row] for row in rows]

    def stacked(self, lengths: Sequence[int]) -> tuple[tuple[Tensor, ...], ...]:
        """As plain `generate` returns them: per new token and layer [B, 1, H], for the first token with the prompt's.

        Zeros after a row's end, and in columns of nothing but padding.
        """
        blank = torch.zeros_like(torch.stack(self._prompt, dim=2)[0, 0])
        steps = [
            torch.stack([row[i] if i + 1 < length else blank for row, length in zip(self._kept, lengths, strict=True)])
            for i in range(max(lengths) - 1)
        ]
        tokens = [tuple(step[:, layer].unsqueeze(1) for layer in range(self._num_layers)) for step in steps]
        return (tuple(self._prompt), *tokens)
