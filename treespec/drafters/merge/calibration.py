"""What a promise has been worth so far: running estimates, each shrunk towards a coarser one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

PRIOR_TRIALS = 128.0
"""The coarser estimate counts for as many trials."""
MEMORY = 0.998
"""What a trial weighs at the next one of its cell: about the last five hundred count."""
NUM_BINS = 4
"""Promised probabilities are told apart by quarters."""
MAX_DEPTH, MAX_RANK = 6, 6
"""Deeper nodes and later siblings share the last cell."""

Cells = Sequence[Hashable]
"""The cells that one trial counts in, the coarsest first."""


class Offer(NamedTuple):
    """A source's promise of one node: its rank among the source's siblings and P(node is right | its parent is)."""

    rank: int
    promise: float


class Calibration:
    """Running estimates of how often something came true, in cells that are made when first met.

    A cell with few trials says little, so its estimate is (hits + PRIOR_TRIALS x prior) / (trials + PRIOR_TRIALS). The
    prior is the next coarser cell's estimate and, for the coarsest cell, what was promised.
    """

    def __init__(self) -> None:
        self._cells: dict[Hashable, tuple[float, float]] = {}

    def estimate(self, promise: float, cells: Cells) -> float:
        """The probability that what was promised with probability `promise` comes true."""
        for cell in cells:
            if cell in self._cells:
                hits, trials = self._cells[cell]
                promise = (hits + PRIOR_TRIALS * promise) / (trials + PRIOR_TRIALS)
        return promise

    def record(self, is_hit: bool, cells: Cells) -> None:
        """Count a trial in all of its cells."""
        for cell in cells:
            hits, trials = self._cells.get(cell, (0.0, 0.0))
            self._cells[cell] = (MEMORY * hits + is_hit, MEMORY * trials + 1.0)


def source_cells(source: int, depth: int, offer: Offer) -> Cells:
    """A promise's cells: its source, rank and size; then its depth too."""
    coarse = (source, min(offer.rank, MAX_RANK), min(int(offer.promise * NUM_BINS), NUM_BINS - 1))
    return (coarse, (*coarse, min(depth, MAX_DEPTH)))
