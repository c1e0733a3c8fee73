"""When to stop a chain: pure functions of the draft's probabilities of the tokens drafted so far.

A rule decides about the *next* token, so the last one stays whatever its probability: dropping it would sort drawn
tokens by their probability and change the output distribution. Where a chain ends may depend on the tokens in it.

Axis letters: B rows, d drafted tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from treespec.checks import check_number
from treespec.errors import ConfigError

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
        _check_threshold(self.threshold)

    def __call__(self, token_probs: Tensor) -> Tensor:
        return token_probs[:, -1] < self.threshold


@dataclass(frozen=True)
class LikelyRejection:
    """Stop when some token so far is rejected with a probability above `threshold` (SpecDec++, Huang et al. 2024).

    That probability is 1 - prod of predicted acceptance. The paper trains a head that predicts; here it is a function
    of the draft's own probability, the identity unless a better one was fitted.

    Args:
        threshold: in (0, 1].
        predict: draft probabilities [B, d] to predicted acceptance [B, d], entry by entry.

    Raises:
        ConfigError: the threshold is not in (0, 1], or `predict` is no function.
    """

    threshold: float = 0.7
    predict: Callable[[Tensor], Tensor] = lambda token_probs: token_probs

    def __post_init__(self) -> None:
        _check_threshold(self.threshold)
        if not callable(self.predict):
            raise ConfigError(f"predict must map draft probabilities to predicted acceptance, got {self.predict!r}")

    def __call__(self, token_probs: Tensor) -> Tensor:
        return 1 - self.predict(token_probs).prod(1) > self.threshold


def _check_threshold(value: float) -> None:
    check_number("threshold", value, lambda share: 0 < share <= 1, "lie in (0, 1]")
