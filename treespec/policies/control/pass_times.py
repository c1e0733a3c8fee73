"""The cost of a step: the target's pass by nodes, rows and context, and the draft, both learned from the steps served.

Times are counted in passes over one token, whose milliseconds are a median of the latest steps: what slows a machine
slows drafts and passes alike, so it changes the milliseconds and no choice.

Axis letters: f features, t numbers of tokens.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median_low

import numpy as np
from jaxtyping import Float, Int, Num

ON_HOST = {1: 1.0, 4: 1.1, 8: 1.25, 12: 1.45, 16: 1.65, 32: 2.8}
ON_ACCELERATOR = {1: 1.0, 2: 1.16, 64: 1.2}
"""A pass's time by tokens over one token's, where none was measured: on hosts between two machines' (1.3 and 1.9 at
16), so that first calls take trees of 8 (results/peers/first.md); on an accelerator an 8B model's
(results/accelerator.md)."""
KNOWN_UNITS, GUESSED_UNITS = (0.03, 0.02, 0.001, 0.03, 0.1), (0.5, 1.0, 0.5, 0.5, 0.5)
"""See `Times`: of measured curves and accelerators, whose passes are flat; and of hosts, whose passes may be steep."""
FIRST_ERROR, FIRST_ERRORS, LEAST_ERROR = 0.1, 4.0, 0.01
"""The relative error that is expected before any is known, for how many it counts, and the least: on a busy machine
errors are larger, and the prior counts for longer. In replays of 50 prompts' trees first calls gain 3 %, later none."""
FORGETTING = 0.99
"""The factor on the weight of all earlier observations at every new one."""
SCALE_STEPS = 9
"""The latest times whose median makes the scale."""
MOST_ERROR = 1.5
"""The most by which a time counts as longer or shorter than predicted, as a factor, in addition to the scale."""
LEAST_PASS, LEAST_DRAFT = 0.1, 1e-3
"""The least predicted times, in passes over one token: where all steps so far were large and as fast, a time of no pass
at all may fit them, and the error of the next one, relative to that, would outweigh all others for good."""
MANY_UNREAD = 16
"""Tokens per row: where a drafter has to read more, a draft's time is mostly reading, and teaches that time only."""


class Times:
    """A time: a scale, the median of the latest, times a sum of features with coefficients that are never negative.

    The coefficients are found by ridge regression on relative errors, recent ones weighted more. The penalty is that of
    a normal prior: it grows with the variance of the errors so far.

    Args:
        prior: the coefficients before anything was observed.
        units: by how much each may well be off.
        least: the least time that is predicted, without the scale.
        scale: the first one, which counts for two times, as a process's first are slow; None: the first time says it.
    """

    def __init__(
        self, prior: Sequence[float], units: Sequence[float], least: float, scale: float | None = None
    ) -> None:
        self.coefficients, precision, self.least = np.array(prior), 1 / np.square(units), least
        self._pull = np.column_stack([np.diag(precision), precision * self.coefficients])
        self._errors = FIRST_ERRORS * np.array([FIRST_ERROR**2, 1.0])
        """The sum of squares of relative errors, and their number."""
        self._sums = np.zeros_like(self._pull)
        """[f, f + 1]: products of the features with each other and, last, with the values."""
        self.scale, self.latest = scale or 1.0, deque([scale] * 2 if scale else (), maxlen=SCALE_STEPS)

    def relative(self, features: Sequence[float]) -> float:
        """The predicted time, without the scale."""
        return max(float(self.coefficients @ features), self.least)

    def add(self, features: Sequence[float], time: float) -> None:
        """Learn one time."""
        expected = self.relative(features)
        self.latest.append(max(time, 1e-6) / expected)
        self.scale = median_low(self.latest)  # The lower of two, as a process's first times are long.
        value = min(max(time / self.scale, expected / MOST_ERROR), MOST_ERROR * expected)
        self._errors = FORGETTING * self._errors + np.array([(value / expected - 1) ** 2, 1.0])
        observed = np.array([*features, value]) / expected
        self._sums = FORGETTING * self._sums + observed[:-1, None] * observed
        variance = max(self._errors[0] / self._errors[1], LEAST_ERROR**2)
        sums, used = self._sums + self._pull * variance, np.arange(len(features))
        found = np.linalg.solve(sums[:, :-1], sums[:, -1])
        while found.min(initial=0.0) < 0:  # Without the features whose coefficients would be negative.
            used = used[found >= 0]
            found = np.linalg.solve(sums[np.ix_(used, used)], sums[used, -1])
        self.coefficients = np.zeros(len(features))
        self.coefficients[used] = found


class PassTimes(Times):
    """The milliseconds of everything in a step but drafting: the target's pass, verification, commit.

    scale x (a + b more(nodes) + c slope nodes + d (rows - 1) + e rows context), where `more` is what a measured pass of
    one row takes beyond one over a single token, and nodes are those beyond one per row. The measured curve gives the
    shape, with a = b = 1, c = e = 0 and d its last slope; steps correct it.

    Args:
        pass_ms: measured passes of one row by number of tokens; None: nothing was measured.
        shape: such a curve of any unit, where nothing was measured.
    """

    def __init__(self, pass_ms: Mapping[int, float] | None = None, shape: Mapping[int, float] = ON_HOST) -> None:
        profile = dict(sorted((pass_ms or shape).items()))
        if len(profile) == 1:  # One number has no shape.
            ((count, ms),) = profile.items()
            profile = {count * tokens: ms * factor for tokens, factor in shape.items()}
        self._tokens, ms = np.array(list(profile), float), np.array(list(profile.values()), float)
        # A pass over fewer tokens takes no longer: what says otherwise was measured while the machine was busy.
        ms = np.minimum.accumulate(ms[::-1])[::-1]
        unit_ms = float(np.interp(1, self._tokens, ms))
        self._more = ms / unit_ms - 1
        self.slope = float((self._more[-1] - self._more[-2]) / (self._tokens[-1] - self._tokens[-2]))
        """The added time of one more token among many, in passes over one token."""
        units = GUESSED_UNITS if pass_ms is None and shape is ON_HOST else KNOWN_UNITS
        super().__init__((1.0, 1.0, 0.0, self.slope, 0.0), units, LEAST_PASS, unit_ms if pass_ms else None)

    def predict(self, num_tokens: Num[np.ndarray, "t"], num_rows: int = 1, context: int = 0) -> Float[np.ndarray, "t"]:
        """Milliseconds of steps with these numbers of tokens, of all rows; past those measured along the last slope."""
        constant, shape, linear, per_row, per_token = self.coefficients.tolist()
        least = max(constant + per_row * (num_rows - 1) + per_token * num_rows * context / 1024, self.least)
        nodes = num_tokens - num_rows
        return self.scale * (least + shape * self._more_of(nodes + 1) + linear * self.slope * nodes)

    def update(self, num_tokens: int, num_rows: int, context: int, ms: float) -> None:
        """Learn the time of one step."""
        nodes = num_tokens - num_rows
        more = float(self._more_of(np.array([nodes + 1]))[0])
        self.add((1.0, more, self.slope * nodes, num_rows - 1.0, num_rows * context / 1024), ms)

    def _more_of(self, tokens: Num[np.ndarray, "t"]) -> Float[np.ndarray, "t"]:
        return np.interp(tokens, self._tokens, self._more) + self.slope * np.maximum(tokens - self._tokens[-1], 0.0)


class DraftTimes(Times):
    """The time of drafting in passes over one token: a start, a draft pass per level, a little per node, reading.

    `pass_share`, `token_share`: what a level's pass and reading a token are expected to take at first; 0 for lookups.
    """

    def __init__(self, pass_share: float = 0.0, token_share: float = 0.0) -> None:
        super().__init__((0.01, pass_share, 0.0005), (0.3, 2 * pass_share or 0.001, 0.01), LEAST_DRAFT, 1.0)
        self._reading = deque([token_share] * 2, maxlen=3)  # By token. Lookups, and some drafters, read in no time.

    def predict(self, num_levels: Num[np.ndarray, "C"], num_nodes: Int[np.ndarray, "C"]) -> Float[np.ndarray, "C"]:
        """Drafts of this many levels and nodes, all rows' together."""
        start, level, node = self.scale * self.coefficients
        return start + level * num_levels + node * num_nodes

    def reading(self, num_tokens: int) -> float:
        """Reading the prompt, and what was decoded without the drafter, before it drafts."""
        return num_tokens * median_low(self._reading)

    def update(self, num_levels: float, num_nodes: int, num_unread: int, num_rows: int, time: float) -> None:
        """Learn one draft."""
        features = 1.0, num_levels, float(num_nodes)
        if num_unread > MANY_UNREAD * num_rows:
            self._reading.append(max(time - self.scale * self.relative(features), 0.0) / num_unread)
        else:
            self.add(features, time)
