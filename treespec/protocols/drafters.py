"""Sources of token trees, and the session that they draft in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from treespec.history import History
from treespec.protocols.policies import TreePolicy
from treespec.protocols.scorers import CausalScorer, HiddenStates, PathProcessors
from treespec.protocols.steps import VerifiedStep
from treespec.tree import TreeBatch


@dataclass(frozen=True)
class Session:
    """What a drafter gets at the start of a call. `history` is the engine's own and is always up to date."""

    history: History
    is_sampling: bool
    processors: PathProcessors
    generator: torch.Generator
    device: torch.device
    vocab_size: int
    row_ids: list[int]
    """The caller's batch row of every row still at work, kept up to date by the engine."""
    policy: TreePolicy | None = None
    """How this call's trees are to be shaped; a drafter built with a policy of its own keeps that."""
    prompt_states: HiddenStates = field(default_factory=dict)
    """What the target's `prefill` returned: of the prompt's columns but the last, padding included."""
    target: CausalScorer | None = None
    """The target's scorer, for drafters that draft with the target itself."""


@runtime_checkable
class Drafter(Protocol):
    """A source of token trees. One drafter serves one call of generation at a time.

    An attribute `promise_weight`, a float, is optional: how much its trees' values weigh to begin with where `Merge`
    pools several drafters; 1, which is what one without it gets, takes them as a law, 0 does not hear them.
    """

    def start(self, session: Session) -> None:
        """Forget the last call and read the prompt. Tables that learn across calls stay."""
        ...

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees for all rows whose roots are `history.last_tokens`, no deeper than `max_depth` (>= 1)."""
        ...

    def commit(self, step: VerifiedStep) -> None:
        """Learn what became of the last trees."""
        ...

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order: the others have finished."""
        ...


@runtime_checkable
class FeatureDrafter(Drafter, Protocol):
    """A drafter that reads hidden states of the target: of the prompt in its session, then of every step's nodes."""

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The layers it reads; see `HiddenStates`."""
        ...


@runtime_checkable
class EarlyExitDrafter(Drafter, Protocol):
    """A drafter that drafts with the target's first layers: its session's target must be an `EarlyExitScorer`."""

    @property
    def exit_layer(self) -> int | None:
        """How many layers draft; None: none do, after all."""
        ...
