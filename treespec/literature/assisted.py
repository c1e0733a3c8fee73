"""Chains of transformers' assisted generation, for those who come from it: stopped by confidence, of learned length."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from treespec.checks import check_count, check_number
from treespec.errors import ConfigError
from treespec.policies.chain import Chain
from treespec.protocols import VerifiedStep


@dataclass(frozen=True)
class LowConfidence:
    """Stop after a token that the draft gave less than `threshold`, in (0, 1].

    transformers' `assistant_confidence_threshold`, for those who come from its assisted generation.
    """

    threshold: float = 0.4

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, lambda share: 0 < share <= 1, "lie in (0, 1]")

    def __call__(self, token_probs: Float[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        return token_probs[:, -1] < self.threshold


class AdaptiveChain(Chain):
    """A chain that grows by two tokens when all of the last one was accepted, and else shrinks by one, up to `max_k`.

    transformers' "heuristic" schedule (Gante 2023), for those who come from its assisted generation. In a batch it
    grows when at least half of the rows accepted all. The length stays from one call to the next.

    Raises `ConfigError`: not 1 <= k <= max_k.
    """

    def __init__(self, k: int = 5, max_k: int = 20) -> None:
        super().__init__(k)
        self._max_k = check_count("max_k", max_k)
        if k > max_k:
            raise ConfigError(f"k must not exceed max_k, got k={k} and max_k={max_k}")
        self.max_nodes = max_k + 1

    def update(self, step: VerifiedStep) -> None:
        """See `LearningPolicy`. A bonus token means that a row's last draft token was accepted."""
        drafted = [verdict for tree, verdict in zip(step.trees.trees, step.verdicts, strict=True) if tree.num_nodes > 1]
        if drafted:
            is_longer = 2 * sum(verdict.is_bonus for verdict in drafted) >= len(drafted)
            self.k = min(self.k + 2, self._max_k) if is_longer else max(self.k - 1, 1)
