"""What several sources say of one token, as one probability: a logarithmic opinion pool (Genest and Zidek 1986).

    P(child) proportional to prod over sources s of P_s(child) ^ weight_s

over a node's children and "none of them". Unlike 1 - prod (1 - P_s), which takes sources to err independently, it hears
what a source leaves out as well, and siblings' probabilities never add up to more than one. A source that alone goes on
after a node is taken at its word, whatever its weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from treespec.drafters.merge.calibration import Calibration, Offer, source_cells

WITHHELD_SHARE = 0.1
"""A source that goes on after a node without offering some child gives it this share of what its offers leave over."""
LEAST = 0.02
"""What a source leaves over at least: none is ever sure that nothing else comes."""
FLOOR = 1e-3
"""No child is less probable to a source: the logarithm of zero would let one source veto a child for good."""
RATE, STEADY = 0.05, 50
"""Weights move by RATE at first, and by less and less after about so many outcomes."""


class Family(NamedTuple):
    """What the sources say of a node's children: offers by source per child, and the sources that say anything."""

    offers: Sequence[Mapping[int, Offer]]
    holders: Sequence[int]
    depth: int


class OpinionPool:
    """Pools the calibrated promises of several sources; weights are learned as outcomes become known.

    Args:
        weights: one per source to begin with: 1 takes its promises as a distribution, 0 does not hear it.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = list(weights)
        self.calibration = Calibration()
        self._num_outcomes = 0

    def probs(self, family: Family) -> list[float]:
        """P(child is right | the node is), one per child."""
        return self._probs(self._log_probs(family), self._heard(family))[:-1]

    def learn(self, family: Family, right: int | None) -> None:
        """Take notice that child number `right` came, or none of them.

        A step up the gradient of the outcome's log probability, by every source's weight.
        """
        if len(family.holders) > 1:
            self._weigh(family, -1 if right is None else right)
        for child, offers in enumerate(family.offers):
            for source, offer in offers.items():
                self.calibration.record(child == right, source_cells(source, family.depth, offer))

    def _weigh(self, family: Family, outcome: int) -> None:
        logs = self._log_probs(family)
        probs = self._probs(logs, self._heard(family))
        rate = RATE / math.sqrt(1 + self._num_outcomes / STEADY)
        self._num_outcomes += 1
        for source in family.holders:
            expected = sum(prob * log[source] for prob, log in zip(probs, logs, strict=True))
            self.weights[source] = max(self.weights[source] + rate * (logs[outcome][source] - expected), 0.0)

    def _heard(self, family: Family) -> Mapping[int, float]:
        sources = family.holders
        return {source: self.weights[source] for source in sources} if len(sources) > 1 else dict.fromkeys(sources, 1.0)

    def _probs(self, logs: Sequence[Mapping[int, float]], weights: Mapping[int, float]) -> list[float]:
        scores = [sum(weights[source] * value for source, value in log.items()) for log in logs]
        top = max(scores)
        masses = [math.exp(score - top) for score in scores]
        total = sum(masses)
        return [mass / total for mass in masses]

    def _log_probs(self, family: Family) -> list[dict[int, float]]:
        """Every source's log probability of every child, and of none of them."""
        promised = [
            {s: self.calibration.estimate(o.promise, source_cells(s, family.depth, o)) for s, o in offers.items()}
            for offers in family.offers
        ]
        rest = {s: max(1.0 - sum(probs.get(s, 0.0) for probs in promised), LEAST) for s in family.holders}
        others = {s: left * WITHHELD_SHARE for s, left in rest.items()}
        outcomes = [*({s: max(probs.get(s, others[s]), FLOOR) for s in rest} for probs in promised), rest]
        return [{s: math.log(prob) for s, prob in outcome.items()} for outcome in outcomes]
