"""The random sources of rules: coins and draws given beforehand, or none at all (greedy decoding)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treespec.errors import LogitsError, RuleMismatchError
from treespec.sampling import inverse_cdf


@dataclass(frozen=True)
class GivenUniforms:
    """Coins and draws in [0, 1), made beforehand; both float [N], indexed by node.

    Raises LogitsError: a distribution that is not finite, or has no mass, reached a decision.
    """

    coins: Sequence[float] | Tensor
    draws: Sequence[float] | Tensor

    def flip(self, node: int, prob: Any) -> bool:
        """Whether the coin of `node` is below `prob`: strictly, so that probability zero never happens."""
        prob = float(prob)
        if math.isnan(prob):
            raise LogitsError(
                f"the acceptance probability of node {node} is NaN: check the target's and draft's distributions"
            )
        return float(self.coins[node]) < prob

    def pick(self, node: int, weights: Any) -> int:
        """The token at which the draw of `node` falls in the cumulative sum of `weights` [V]."""
        weights = torch.as_tensor(weights)
        total = float(weights.sum())
        if not 0 < total < math.inf:
            raise LogitsError(f"cannot draw the token after node {node}: the weights sum to {total}")
        uniform = torch.tensor(float(self.draws[node]), dtype=torch.float64, device=weights.device)
        return int(inverse_cdf(weights, uniform))


class ArgmaxSource:
    """Greedy decoding: picks the first token of the highest weight, so raw scores can stand for the distribution."""

    def flip(self, node: int, prob: Any) -> bool:
        raise RuleMismatchError(
            f"the rule flips a coin (node {node}, probability {float(prob):.4g}), but greedy decoding has none: "
            "use the target walk, which every lossless rule equals at temperature zero"
        )

    def pick(self, node: int, weights: Any) -> int:
        return int(weights.argmax())
