"""What a way of drafting costs and brings: its times, and the expected accepted tokens by nodes verified."""

from __future__ import annotations

import numpy as np

from treespec.vllm.times import TimeModel

NODES_PER_REQUEST = np.array([0, 0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 11, 15, 23, 31, 63])
"""Where the curve of a draft's value is kept."""
CURVE_MEMORY = 0.9
FIRST_SHAPE = (1.0, 0.5, 0.02)
"""A draft's times at first: of a request and an unread token, in units of the constant."""
READ_STEPS = 16
"""Reading a request's text is worth its time over so many steps."""
BIN_EDGES = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85])
"""Values between them are corrected together."""
PRIOR_HITS = 2.0
MEMORY = 0.98
FIRST_DRAFTS = 2
FIRST_WAIT, MOST_PATIENCE = 4, 32
PROBE_SHARE = 0.02
"""Drafts that are predicted to lose are tried in at most this share of the time, half of it after every one."""


class Method:
    """One way of drafting, such as lookups alone."""

    def __init__(self) -> None:
        self.times = TimeModel(FIRST_SHAPE, FIRST_SHAPE)
        """By requests and by tokens that a head has not read."""
        self.curve = np.zeros(len(NODES_PER_REQUEST))
        """Expected accepted tokens per request, by nodes verified per request; see `NODES_PER_REQUEST`."""
        self.num_drafts = self._waited = 0
        self._patience = 1
        self._hits = self._predicted = np.full(len(BIN_EDGES) + 1, PRIOR_HITS)

    @property
    def is_new(self) -> bool:
        """Whether too little is known to predict anything."""
        return self.num_drafts < FIRST_DRAFTS

    @property
    def correction(self) -> float:
        """Accepted nodes per expected one."""
        return float(self._hits.sum() / self._predicted.sum())

    def correct(self, values: np.ndarray) -> np.ndarray:
        """The values that outcomes of nodes with like values have had."""
        rates = self._hits / self._predicted
        return np.minimum(values * rates[np.digitize(values, BIN_EDGES)], 1.0)

    def update(self, values: np.ndarray, accepted: np.ndarray) -> None:
        """Learn the values of a step's verified nodes, and of those that were accepted."""
        if not len(values):
            return
        for name, seen, weights in (("_hits", accepted, None), ("_predicted", values, values)):
            counts = np.bincount(np.digitize(seen, BIN_EDGES), weights, len(BIN_EDGES) + 1)
            prior = (1 - MEMORY) * PRIOR_HITS  # An unused correction fades.
            setattr(self, name, MEMORY * getattr(self, name) + prior + counts)

    def keep_curve(self, ranked: np.ndarray, num_requests: int) -> None:
        """Average in a draft of so many requests with these corrected values, best first."""
        sums = np.append(0.0, np.cumsum(ranked)) / num_requests
        curve = np.interp(NODES_PER_REQUEST * num_requests, np.arange(len(sums)), sums)
        memory = min(CURVE_MEMORY, self.num_drafts / (self.num_drafts + 1))
        self.curve = memory * self.curve + (1 - memory) * curve
        self.num_drafts += 1

    def rate(self, num_requests: int, unread: int, passes: TimeModel) -> float:
        """Expected tokens per millisecond of a step with the best number of nodes."""
        nodes = NODES_PER_REQUEST * num_requests
        ms = passes.predict(num_requests, num_requests + nodes) + self.times.predict(num_requests, unread / READ_STEPS)
        return float((num_requests * (1 + self.curve) / ms).max())

    def is_due(self, ms: float, pass_ms: float) -> bool:
        """Whether a draft of so many ms is tried though it is predicted to lose; call it once per step without one."""
        self._waited += 1
        if self._waited < self._patience * max(FIRST_WAIT, ms / (PROBE_SHARE * pass_ms)):
            return False
        self._waited, self._patience = 0, min(2 * self._patience, MOST_PATIENCE)
        return True

    def win(self) -> None:
        """It is predicted to be best."""
        self._waited, self._patience = 0, 1
