"""Models as scorers of trees, and the caller's processors on their logits.

Axis letters: B rows, P prompt positions, F new nodes, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class Capability(IntEnum):
    """What a model can verify in one pass: nothing beyond the next token, a chain, or a tree."""

    PLAIN = 0
    CHAIN = 1
    TREE = 2


HiddenStates = Mapping[int, Tensor]
"""Hidden states [B, F, H] by layer: 0 is the embedding, i what layer i (from one) leaves, -1 the last one, normed.

These are the indices of transformers' `output.hidden_states`.
"""


class Scores(NamedTuple):
    """What one pass over new nodes returns.

    `logits` [B, F, V], in the model's dtype; `hidden_states` of the layers that the scorer was asked for.
    """

    logits: Tensor
    hidden_states: HiddenStates = MappingProxyType({})


class CausalScorer(Protocol):
    """A causal language model with a cache that grows by trees and is cut back to paths.

    Pending nodes are those scored since the last commit, numbered in the order in which they came.
    """

    @property
    def capability(self) -> Capability:
        """What it can score in one pass."""
        ...

    @property
    def vocab_size(self) -> int:
        """V, the last axis of its logits."""
        ...

    @property
    def device(self) -> torch.device:
        """Where tokens are expected and logits come back."""
        ...

    @property
    def max_positions(self) -> int | None:
        """How many positions the model has, None where it has no end."""
        ...

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The layers whose hidden states it returns; see `HiddenStates`."""
        ...

    def prefill(self, ids: Tensor, mask: Tensor) -> HiddenStates:
        """Start anew with the committed tokens that are to be cached: ids int64 [B, P], mask bool [B, P], P >= 0.

        Returns the wanted hidden states of the columns that it computed, the last ones of the P; none for P = 0.
        """
        ...

    def extend(self, tokens: Tensor, parents: Tensor) -> Scores:
        """Score F new pending nodes in one pass.

        Args:
            tokens: int64 [B, F].
            parents: int64 [B, F], ids of pending nodes; -1 attaches a node to the last committed token, -2 is padding.
        """
        ...

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep, per row, the pending nodes on `paths[b]` (in this order) in the cache and drop the others."""
        ...

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        ...


@runtime_checkable
class EarlyExitScorer(CausalScorer, Protocol):
    """A scorer whose first layers draft what its later layers go on to verify."""

    @property
    def exit_layer(self) -> int:
        """How many layers draft."""
        ...

    def draft(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Logits [B, F, V] of the head on the first layers' hidden states, for F more drafted nodes.

        Args:
            tokens: int64 [B, F].
            parents: int64 [B, F], numbers of drafted nodes, counted over all calls since the last commit; -1 attaches
                a node to the last committed token, -2 is padding.
        """
        ...


class PathProcessors(Protocol):
    """The caller's logits processors, applied along paths of a tree."""

    @property
    def is_path_free(self) -> bool:
        """True when no processor looks at the tokens before the position (temperature, top-k, top-p, min-p, none)."""
        ...

    @property
    def is_row_free(self) -> bool:
        """True when a row's number means nothing, so that paths of several rows may be stacked."""
        ...

    def __call__(self, ids: Tensor, logits: Tensor, row: int) -> Tensor:
        """Processed scores float32 [M, V] from raw logits [M, V] of positions that end the ids int64 [M, L].

        `row` is the row's number in the caller's batch (some processors index by it).
        """
        ...
