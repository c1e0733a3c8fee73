"""How often votes of each kind have been right: running estimates, each shrunk towards a coarser one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

PRIOR_TRIALS = 128.0
"""The weight of the coarser estimate, in trials."""
MEMORY = 0.998
"""The factor on a cell's counts per trial: about the last five hundred count."""
NUM_BINS = 4
"""Bins of confidence."""
MAX_DEPTH, MAX_RANK = 6, 6
"""Deeper nodes and later siblings share the last cell."""

Cells = Sequence[Hashable]
"""The cells in which one trial is counted, the coarsest first."""


class Vote(NamedTuple):
    """A drafter's vote for one node: its rank among that drafter's siblings, and P(node is right | its parent is)."""

    rank: int
    confidence: float


class Calibration:
    """Running estimates of probabilities, in cells that are made when first counted.

    A cell's estimate is (hits + PRIOR_TRIALS x prior) / (trials + PRIOR_TRIALS), where the prior is the next coarser
    cell's estimate and, for the coarsest cell, the confidence itself.
    """

    def __init__(self) -> None:
        self._cells: dict[Hashable, tuple[float, float]] = {}

    def estimate(self, confidence: float, cells: Cells) -> float:
        """The calibrated probability of a vote with this confidence in these cells."""
        for cell in cells:
            if cell in self._cells:
                hits, trials = self._cells[cell]
                confidence = (hits + PRIOR_TRIALS * confidence) / (trials + PRIOR_TRIALS)
        return confidence

    def record(self, is_hit: bool, cells: Cells) -> None:
        """Count a trial in all of its cells."""
        for cell in cells:
            hits, trials = self._cells.get(cell, (0.0, 0.0))
            self._cells[cell] = (MEMORY * hits + is_hit, MEMORY * trials + 1.0)


def vote_cells(voter: int, depth: int, vote: Vote) -> Cells:
    """A vote's cells: by drafter, rank and confidence; then by depth too."""
    coarse = (voter, min(vote.rank, MAX_RANK), min(int(vote.confidence * NUM_BINS), NUM_BINS - 1))
    return (coarse, (*coarse, min(depth, MAX_DEPTH)))
