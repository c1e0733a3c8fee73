"""What a way of drafting costs and brings: its times, and the expected accepted tokens by nodes verified."""

from __future__ import annotations

import numpy as np

from treespec.vllm.times import TimeModel

DRAFT_MEMORY = 0.9
"""What earlier drafts count for at every new draft of one request."""
FIRST_SHAPE = (1.0, 0.5, 0.02)
"""A draft's times at first: of a request and an unread token, in units of the constant."""
READ_STEPS = 16
"""Reading a request's text is worth its time over this many steps."""
BIN_EDGES = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85])
"""Values between them are corrected together."""
PRIOR_HITS = 2.0
MEMORY = 0.98
FIRST_DRAFTS, FIRST_REQUESTS = 2, 6
"""A way to draft is new until it has made this many drafts, for this many requests in all."""
FIRST_WAIT, MOST_PATIENCE = 4, 8
PROBE_SHARE = 0.05
"""Drafts that are predicted to lose are tried in at most this share of the time, soon in an eighth of it."""


class Method:
    """One way of drafting, such as lookups alone."""

    def __init__(self) -> None:
        self.times = TimeModel(FIRST_SHAPE, FIRST_SHAPE)
        """By requests and by tokens that a head has not read."""
        self._nodes = self._values = np.zeros(len(BIN_EDGES) + 1)
        self._weight = 0.0
        self.num_drafts = self.num_requests = self._waited = 0
        self._patience = 1
        self._hits = self._predicted = np.full(len(BIN_EDGES) + 1, PRIOR_HITS)

    @property
    def is_new(self) -> bool:
        """Whether too little is known to predict anything."""
        return self.num_drafts < FIRST_DRAFTS or self.num_requests < FIRST_REQUESTS

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

    def add(self, values: np.ndarray, num_requests: int) -> None:
        """Count a draft of this many requests with nodes of these values, verified or not."""
        bins, memory = np.digitize(values, BIN_EDGES), DRAFT_MEMORY**num_requests
        share, size = (1 - memory) / num_requests, len(BIN_EDGES) + 1
        self._nodes = memory * self._nodes + share * np.bincount(bins, minlength=size)
        self._values = memory * self._values + share * np.bincount(bins, values, size)
        self._weight = memory * self._weight + 1 - memory
        self.num_drafts += 1
        self.num_requests += num_requests

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean draft's numbers of nodes per request, the best first, and the tokens that they should add."""
        weight = max(self._weight, 1e-9)
        nodes = self._nodes / weight
        tokens = np.minimum(self._values / weight * self._hits / self._predicted, nodes)
        order = np.argsort(-tokens / np.maximum(nodes, 1e-9), kind="stable")
        return np.append(0.0, np.cumsum(nodes[order])), np.append(0.0, np.cumsum(tokens[order]))

    def rate(self, num_requests: int, unread: int, passes: TimeModel) -> float:
        """Expected tokens per millisecond of a step with the best number of nodes."""
        nodes, tokens = self.curve
        ms = passes.predict(num_requests, num_requests * (1 + nodes))
        ms = ms + self.times.predict(num_requests, unread / READ_STEPS)
        return float((num_requests * (1 + tokens) / ms).max())

    def is_due(self, ms: float, pass_ms: float) -> bool:
        """Whether a draft of `ms` is tried though it is predicted to lose; call it once per step without one."""
        self._waited += 1
        if self._waited < self._patience * max(FIRST_WAIT, ms / (PROBE_SHARE * pass_ms)):
            return False
        self._waited, self._patience = 0, min(4 * self._patience, MOST_PATIENCE)
        return True

    def win(self) -> None:
        """It is predicted to be best."""
        self._waited, self._patience = 0, 1
