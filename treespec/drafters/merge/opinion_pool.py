"""One probability from several drafters' votes: a logarithmic opinion pool (Genest and Zidek 1986).

    P(child) proportional to prod over voters d of P_d(child) ^ weight_d

over a node's children and "none of them". Unlike 1 - prod (1 - P_d) it counts the children that a drafter omits against
them, and siblings never sum to more than one. A drafter that alone has children below a node is believed.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from treespec.policies.calibration import Calibration

OMITTED_SHARE = 0.1
"""The share of a voter's remaining probability that each child gets which it does not vote for."""
MIN_REST = 0.02
"""The least remaining probability: no voter is certain that nothing else comes."""
MIN_PROB = 1e-3
"""The least probability of a child to a voter: log 0 would let one voter exclude a child for good."""
RATE, STEADY = 0.05, 50
"""The learning rate of the weights, which falls with the square root of outcomes / STEADY."""
PRIOR_TRIALS = 128.0
"""The weight of the coarser estimate, in trials."""
MEMORY = 0.998
"""The factor on a cell's counts per trial: about the last five hundred count."""
NUM_BINS, MAX_DEPTH, MAX_RANK = 4, 6, 6
"""Bins of confidence; deeper nodes and later siblings share the last cell."""

Cells = Sequence[Hashable]  # In which one trial is counted, the coarsest first.


class Vote(NamedTuple):
    """A drafter's vote for one node: its rank among that drafter's siblings, and P(node is right | its parent is)."""

    rank: int
    confidence: float


class SiblingGroup(NamedTuple):
    """The children of a node: per child the votes by drafter; the drafters that vote for any of them; their depth."""

    votes: Sequence[Mapping[int, Vote]]
    voters: Sequence[int]
    depth: int


def vote_cells(voter: int, depth: int, vote: Vote) -> Cells:
    """A vote's cells: by drafter, rank and confidence; then by depth too."""
    coarse = (voter, min(vote.rank, MAX_RANK), min(int(vote.confidence * NUM_BINS), NUM_BINS - 1))
    return (coarse, (*coarse, min(depth, MAX_DEPTH)))


class OpinionPool:
    """Pools the calibrated votes of several drafters; weights are learned as outcomes become known.

    An initial weight of 1 takes a drafter's confidence for a distribution, 0 ignores it.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = list(weights)
        self.calibration = Calibration(PRIOR_TRIALS, MEMORY)
        self._num_outcomes = 0

    def probs(self, group: SiblingGroup) -> list[float]:
        """P(child is right | its parent is), one per child."""
        return self._probs(self._log_probs(group), group)[:-1]

    def update(self, group: SiblingGroup, right: int | None) -> None:
        """Learn that child number `right` was right, or none of them."""
        if len(group.voters) > 1:
            self._update_weights(group, -1 if right is None else right)
        for child, votes in enumerate(group.votes):
            for voter, vote in votes.items():
                self.calibration.update(child == right, vote_cells(voter, group.depth, vote))

    def _update_weights(self, group: SiblingGroup, outcome: int) -> None:
        """A step along the gradient of the outcome's log probability."""
        logs = self._log_probs(group)
        probs = self._probs(logs, group)
        rate = RATE / math.sqrt(1 + self._num_outcomes / STEADY)
        self._num_outcomes += 1
        for voter in group.voters:
            expected = sum(prob * log[voter] for prob, log in zip(probs, logs, strict=True))
            self.weights[voter] = max(self.weights[voter] + rate * (logs[outcome][voter] - expected), 0.0)

    def _probs(self, logs: Sequence[Mapping[int, float]], group: SiblingGroup) -> list[float]:
        """Pooled probabilities of every child, and of none of them."""
        weights = {voter: self.weights[voter] if len(group.voters) > 1 else 1.0 for voter in group.voters}
        scores = [sum(weights[voter] * value for voter, value in log.items()) for log in logs]
        top = max(scores)  # Scores are negative: every exp could be zero without it.
        masses = [math.exp(score - top) for score in scores]
        total = sum(masses)
        return [mass / total for mass in masses]

    def _log_probs(self, group: SiblingGroup) -> list[dict[int, float]]:
        """Every voter's log probability of every outcome: each child in turn, and last that it is none of them."""
        calibrated = [
            {d: self.calibration.estimate(v.confidence, vote_cells(d, group.depth, v)) for d, v in votes.items()}
            for votes in group.votes
        ]
        rest = {d: max(1.0 - sum(probs.get(d, 0.0) for probs in calibrated), MIN_REST) for d in group.voters}
        omitted = {d: left * OMITTED_SHARE for d, left in rest.items()}
        outcomes = [*({d: max(probs.get(d, omitted[d]), MIN_PROB) for d in rest} for probs in calibrated), rest]
        return [{d: math.log(prob) for d, prob in outcome.items()} for outcome in outcomes]
