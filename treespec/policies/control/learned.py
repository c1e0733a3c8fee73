"""What the control has learned of a drafter on a model, and when it drafts.

Axis letters: t numbers of nodes in a curve of times.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from treespec.policies.best_first import BestFirst
from treespec.policies.control.acceptance import Acceptance
from treespec.policies.control.candidates import PLAIN, Candidates
from treespec.policies.control.times import MOST_NODES, DraftTimes, PassTimes, ReadingTime
from treespec.protocols import TreePolicy

LEAST_GAIN = 1.03
"""A draft must be predicted to be this many times as fast as plain decoding."""
CLEAR_GAIN = 1.1
"""The same after drafts that did not pay: a drafter that is right too seldom is soon predicted close to plain. And of
several rows, which end at different steps: a batch gains less than its mean row."""
CLOSE_GAIN = 1.5
"""Where the best draft is predicted to gain less, plain steps are timed first."""
FIRST_WAIT, LONGEST_WAIT = 8, 256
"""Plain steps before drafting is tried again, doubled while it does not pay."""
POOR_GAIN, MOST_REPEATS = 1.05, 3
"""After drafts that did not pay, and where the best one is predicted to gain less than `POOR_GAIN`, a plain step is
followed by `MOST_REPEATS` plain ones without another prediction."""
READING_SHARE = 0.03
"""What must be read to try a drafter again takes at most this share of the plain steps' time."""
FIRST_TREES = 4
"""Drafts that are trees in any case, at first: a chain says nothing of trees."""
EXPLORED_EVERY = 16
"""Once in this many drafts the best tree is taken, even if a chain is predicted to be faster, and goes deeper."""

_NODES_BELOW = np.arange(MOST_NODES)
"""Below the roots, of the numbers 1, 2, ... of a curve."""


class Learned:
    """Acceptance and times of the candidates, and where the control stands between drafting and plain decoding.

    Args:
        profile: see `PassTimes`.
        draft_share: see `CallFacts`.
    """

    def __init__(self, candidates: Candidates, profile: Mapping[int, float] | None, draft_share: float) -> None:
        self.candidates, self.acceptance = candidates, Acceptance(candidates)
        self.passes = PassTimes(profile)
        self._level_ms = draft_share * float(self.passes.curve(1, 1)[1])
        self._drafts: dict[int, DraftTimes] = {}
        self.reading = ReadingTime()
        self._plain_steps, self._wait, self._num_drafts = 0, FIRST_WAIT, 0
        self.num_repeats = 0
        """Steps that are plain as the last one without another prediction."""
        self._break_even = 0.0
        """Accepted tokens that the last draft needed to pay."""
        best = self.acceptance.expected()[0].argmax()
        self.first_policy: TreePolicy = candidates.policies[int(best)] or BestFirst(1)

    def drafts(self, num_rows: int) -> DraftTimes:
        """The times of drafting for about this many rows."""
        key = num_rows.bit_length()
        if key not in self._drafts:
            self._drafts[key] = DraftTimes(self._level_ms)
        return self._drafts[key]

    def predict(
        self, num_rows: int, curve: Float[np.ndarray, "t"], ms_per_token: float
    ) -> tuple[Float[np.ndarray, "C"], Float[np.ndarray, "C"], Float[np.ndarray, "C"]]:
        """Tokens per row and millisecond, milliseconds of a step, and those of its draft, by candidate.

        `ms_per_token`: what the drafter must read first, spread over the tokens that a row may still emit.
        """
        accepted, nodes, num_passes = self.acceptance.expected()
        draft_ms = self.drafts(num_rows).predict(num_passes, num_rows * self.candidates.num_nodes)
        tokens = 1 + accepted
        draft_ms += ms_per_token * tokens
        draft_ms[PLAIN] = 0.0
        step_ms = draft_ms + np.interp(nodes, _NODES_BELOW, curve[1:])
        return tokens / step_ms, step_ms, draft_ms

    def decide(
        self,
        rates: Float[np.ndarray, "C"],
        times: Float[np.ndarray, "C"],
        max_latency_ms: float | None,
        reading_ms: float,
        num_rows: int,
        is_plain_known: bool,
    ) -> tuple[int, bool, str]:
        """The number of the candidate to take for rows of a batch, whether it is taken to explore, and the reason.

        `reading_ms`: what the drafter would read first; the more, the later it is tried again. `is_plain_known`: see
        `PassTimes`.
        """
        if len(rates) == 1:
            return PLAIN, False, "max_nodes=1"
        drafting = rates.copy()
        drafting[PLAIN] = 0.0
        if max_latency_ms is not None:
            drafting[times > max_latency_ms] = 0.0
        best = int(drafting.argmax())
        if best == PLAIN:
            return PLAIN, False, "every draft is predicted to exceed max_latency_ms"
        gain = drafting[best] / rates[PLAIN]
        if gain < CLOSE_GAIN and not is_plain_known:
            return PLAIN, False, f"the best draft is {gain:.2f} times plain, whose time is measured first"
        self._break_even = times[best] / times[PLAIN] - 1
        if gain >= (LEAST_GAIN if self._wait == FIRST_WAIT and num_rows == 1 else CLEAR_GAIN):
            self._plain_steps = 0
            self._num_drafts += 1
            trees = drafting[self.candidates.trees]
            is_exploring = self._num_drafts % EXPLORED_EVERY == 0
            if (self._num_drafts <= FIRST_TREES or is_exploring) and trees.any():
                best_tree = self.candidates.trees.start + int(trees.argmax())
                return best_tree, is_exploring, "a tree in any case: it shows chains too"
            return best, False, f"{gain:.2f} times plain"
        num_left = max(self._wait, reading_ms / (READING_SHARE * times[PLAIN])) - self._plain_steps
        if num_left <= 0:
            self._plain_steps, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
            return best, False, "probed again after plain steps"
        self._plain_steps += 1
        if self._wait > FIRST_WAIT and gain < POOR_GAIN:
            self.num_repeats = min(MOST_REPEATS, int(num_left) - 1)
        return PLAIN, False, f"the best draft is {gain:.2f} times plain"

    def repeats_plain(self) -> bool:
        """Whether this step is plain as the last one: a prediction costs time, and changes little in plain steps."""
        if self.num_repeats <= 0:
            return False
        self.num_repeats -= 1
        self._plain_steps += 1
        return True

    def update(self, num_accepted: int) -> None:
        """After a step that drafted: where a draft paid after many that did not, the next step drafts in any case."""
        if self._wait > FIRST_WAIT and num_accepted > self._break_even:
            self._plain_steps = self._wait = FIRST_WAIT
