"""When to stop a chain: pure functions of the draft's probabilities of the tokens drafted so far.

A rule decides about the *next* token, so the last one stays whatever its probability: dropping it would select drawn
tokens by their probability and change the output distribution. Where a chain ends may depend on the tokens in it.

Axis letters: B rows, d drafted tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from treespec.checks import check_number

StopRule = Callable[[Tensor], Tensor]
"""Maps the draft's probabilities of a chain's tokens, float [B, d], to whether it ends there, bool [B]."""


@dataclass(frozen=True)
class LowConfidence:
    """Stop after a token that the draft gave less than `threshold` (transformers' `assistant_confidence_threshold`).

    Raises:
        ConfigError: the threshold is not in (0, 1].
    """

    threshold: float = 0.4

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, lambda share: 0 < share <= 1, "lie in (0, 1]")

    def __call__(self, token_probs: Tensor) -> Tensor:
        return token_probs[:, -1] < self.threshold
