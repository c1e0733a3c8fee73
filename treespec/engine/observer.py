"""Observers of a call: statistics, traces, progress, streams, outputs, and anything of yours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from jaxtyping import Float
from torch import Tensor

from treespec.engine.target_probs import TargetProbs
from treespec.policies.control.contract import Choice
from treespec.protocols import HiddenStates, PathProcessors, VerificationRule
from treespec.tree import Path, TokenTree, Verdict


@dataclass(frozen=True)
class VerifiedTrees:
    """One step's trees and verdicts before anything is committed, while the drafter knows who proposed what.

    `rows` are the caller's batch rows, `contexts` the tokens of their texts, `uniforms` coins and draws, None in greedy
    decoding.
    """

    rows: list[int]
    contexts: list[int]
    probs: TargetProbs
    verdicts: Sequence[Verdict]
    verification: str | VerificationRule
    uniforms: tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]] | None


@dataclass(frozen=True)
class StepRecord:
    """One verified step, on the host: `rows` are the caller's batch rows, `seconds` the step's time by phase.

    `choice`: what `tree="auto"` chose and why, None with another policy. `is_prompt`: by the prompt's pass, the first.
    """

    rows: list[int]
    trees: list[TokenTree]
    verdicts: list[Verdict]
    emitted: list[list[int]]
    seconds: dict[str, float]
    choice: Choice | None = None
    is_prompt: bool = False


class Observer:
    """Watches a call, whose context it is; override what you want to see. Nothing it does may change the call."""

    def __enter__(self) -> Self:
        """The call begins."""
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The call ends, by an error if there is one."""

    def around(self, processors: PathProcessors) -> PathProcessors:
        """The call's logits processors, or ones that do the same and are watched."""
        return processors

    def on_prefill(self, states: HiddenStates) -> None:
        """The prompt is in the target's cache; `states`: what the target returns of the columns that it computed."""

    def on_verified(self, step: VerifiedTrees) -> None:
        """The step's trees are verified and not committed yet."""

    def on_path(self, row: int, probs: TargetProbs, index: int, path: Path) -> None:
        """`path` was accepted in the caller's row `row`, number `index` of `probs`; it may be cut where text stops."""

    def on_tokens(self, row: int, tokens: list[int]) -> None:
        """These tokens of a row are final."""

    def on_step(self, step: StepRecord) -> None:
        """The step is over."""
