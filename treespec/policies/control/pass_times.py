"""What a step costs: the target's pass by nodes, rows and context, and the draft, both learned from the steps served.

Times are counted in passes over one token, whose milliseconds are a median of the latest steps: what slows a machine
slows drafts and passes alike, so it changes the milliseconds and no choice.

Axis letters: f features, t numbers of tokens.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from operator import mul
from statistics import median_low

import numpy as np
from jaxtyping import Float, Int, Num

UNMEASURED = {1: 1.0, 51: 2.0}
"""A pass's time by tokens, in passes over one token, where nothing was measured."""
FORGETTING = 0.97
"""What earlier observations count for at every new one."""
RENEWED_EVERY = 4
"""Observations after which coefficients are made again; after the first eight each."""
UNIT_STEPS = 9
"""The latest steps whose median is the time of a pass over one token."""
MEASURED_ERROR, MOST_ERROR = 1.5, 3.0
"""The most by which a pass counts as slower or faster than predicted, as a factor: with a profile, and without."""
LEAST_CONSTANT = 0.01
"""A pass over one token takes at least this many: where all passes so far were large and as fast, none may fit them."""
NUM_PLAIN = 3
"""Plain steps of several rows after which their time is known."""
CHANGED = 2.0
"""Where drafts take more or less than this many times what is predicted, what was observed before is dropped."""
MANY_UNREAD = 16
"""Tokens per row: where a drafter has to read more, a draft's time is mostly reading, and teaches that time only."""


class TimeRegression:
    """Coefficients that are never negative: ridge regression on relative errors, recent ones weighted more.

    Args:
        prior: the coefficients before anything was observed.
        units: by how much each may well be off; such an error counts for one observation.
    """

    def __init__(self, prior: Sequence[float], units: Sequence[float]) -> None:
        self.coefficients, precision = np.array(prior), 1 / np.square(units)
        self._pull = np.column_stack([np.diag(precision), precision * self.coefficients])
        self._num_added = 0
        self.forget()

    def forget(self) -> None:
        """Drop what was observed; the prior stays."""
        self._sums = np.zeros_like(self._pull)
        """[f, f + 1]: products of the features with each other and, last, with the values."""

    def predict(self, features: Sequence[float]) -> float:
        return max(sum(map(mul, features, self.coefficients.tolist())), 1e-6)

    def add(self, features: Sequence[float], value: float) -> None:
        """Learn one value."""
        observed = np.array([*features, value]) / self.predict(features)
        self._sums = FORGETTING * self._sums + observed[:-1, None] * observed
        self._num_added += 1
        if self._num_added <= 8 or self._num_added % RENEWED_EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        """Without the features whose coefficients would be negative."""
        sums, used = self._sums + self._pull, np.arange(len(self._pull))
        found = np.linalg.solve(sums[:, :-1], sums[:, -1])
        while found.min(initial=0.0) < 0:
            used = used[found >= 0]
            found = np.linalg.solve(sums[np.ix_(used, used)], sums[used, -1])
        self.coefficients = np.zeros(len(self._pull))
        self.coefficients[used] = found


class PassTimes:
    """The time of everything in a step but drafting: the target's pass, verification, commit.

    unit x (a + b more(tokens) + c (rows - 1) + d rows context), where `more` is what a measured pass takes beyond one
    over a single token. The measured curve gives the shape, with a = b = 1 and c = d = 0; steps correct it.

    Args:
        pass_ms: measured passes of one row by number of tokens; None: nothing was measured.

    Attributes:
        unit_ms: milliseconds of a pass over one token; no time at all before one was measured (`is_scaled`).
        slope: what one of many tokens takes, in passes over one token.
    """

    def __init__(self, pass_ms: Mapping[int, float] | None = None) -> None:
        profile = dict(sorted((pass_ms or UNMEASURED).items()))
        if len(profile) == 1:  # One number has no shape.
            ((count, ms),) = profile.items()
            profile = {count * tokens: ms * factor for tokens, factor in UNMEASURED.items()}
        self._tokens, ms = np.array(list(profile), float), np.array(list(profile.values()), float)
        # A pass over fewer tokens takes no longer: what says otherwise was measured while the machine was busy.
        ms = np.minimum.accumulate(ms[::-1])[::-1]
        self.unit_ms = float(np.interp(1, self._tokens, ms))
        self._more = ms / self.unit_ms - 1
        self.slope = (self._more[-1] - self._more[-2]) / (self._tokens[-1] - self._tokens[-2])
        units = (0.3, 0.6, 0.3, 1.0) if pass_ms else (10.0, 200.0, 10.0, 3.0)
        self._regression = TimeRegression((1.0, 1.0, 0.0, 0.0), units)
        # The first steps of a process are slow: two are outvoted. Where nothing was measured the first one says it all.
        self._latest = deque([self.unit_ms] * 2, maxlen=UNIT_STEPS) if pass_ms else None
        self.is_scaled, self._most_error = bool(pass_ms), MEASURED_ERROR if pass_ms else MOST_ERROR
        self._num_plain = Counter[int]()

    def predict(self, num_tokens: Num[np.ndarray, "t"], num_rows: int = 1, context: int = 0) -> Float[np.ndarray, "t"]:
        """Milliseconds of steps with these numbers of tokens, of all rows; beyond those measured along the last slope.

        `context`: tokens of the longest text.
        """
        constant, slope, *others = self._regression.coefficients.tolist()
        constant = max(constant + sum(map(mul, others, _of_rows(num_rows, context))), LEAST_CONSTANT)
        return self.unit_ms * (constant + slope * self._more_of(num_tokens))

    def update(self, num_tokens: int, num_rows: int, context: int, ms: float) -> None:
        """Learn the time of one step."""
        features = 1.0, float(self._more_of(np.array([num_tokens]))[0]), *_of_rows(num_rows, context)
        expected = self._regression.predict(features)
        if self._latest is not None:
            self._latest.append(max(ms, 1e-6) / expected)
            self.unit_ms = median_low(self._latest)
        elif not self.is_scaled:
            self.unit_ms, self.is_scaled = max(ms, 1e-6) / expected, True
        value = min(max(ms / self.unit_ms, expected / self._most_error), self._most_error * expected)
        self._regression.add(features, value)
        self._num_plain[num_rows.bit_length()] += num_tokens == num_rows

    def is_plain_known(self, num_rows: int) -> bool:
        """Whether plain steps of this many rows were timed, or need not be: a profile is of one row."""
        return num_rows == 1 or self._num_plain[num_rows.bit_length()] >= NUM_PLAIN

    def _more_of(self, tokens: Num[np.ndarray, "t"]) -> Float[np.ndarray, "t"]:
        beyond = self.slope * np.maximum(tokens - self._tokens[-1], 0.0)
        return np.interp(tokens, self._tokens, self._more) + beyond


class DraftTimes:
    """The time of drafting in passes over one token: a start, draft passes, a little per node, reading.

    Args:
        pass_share: what a draft pass is expected to take before anything was observed; 0: drafting takes no passes.
        token_share: what reading a token is expected to take.
    """

    def __init__(self, pass_share: float = 0.0, token_share: float = 0.0) -> None:
        units = 1.0, 6 * pass_share if pass_share > 0 else 0.002, 0.03
        self._regression = TimeRegression((0.01, pass_share, 0.0005), units)
        self._latest = deque[tuple[tuple[float, ...], float]](maxlen=3)
        # By token. Lookups read in no time, and some drafters while the target reads the prompt.
        self._reading = deque([token_share] * 2, maxlen=3)

    @property
    def pass_share(self) -> float:
        """One more draft pass."""
        return float(self._regression.coefficients[1])

    def predict(self, num_passes: Float[np.ndarray, "C"], num_nodes: Int[np.ndarray, "C"]) -> Float[np.ndarray, "C"]:
        """Drafts of this many draft passes and nodes, all rows' together."""
        start, level, node = self._regression.coefficients
        return start + level * num_passes + node * num_nodes

    def reading(self, num_tokens: int) -> float:
        """Reading the prompt, and what was decoded without the drafter, before it drafts."""
        return num_tokens * median_low(self._reading)

    def update(self, num_passes: int, num_nodes: int, num_unread: int, num_rows: int, time: float) -> None:
        """Learn one draft; a time far from what is predicted is believed after a median of three."""
        features = 1.0, float(num_passes), float(num_nodes)
        if num_unread > MANY_UNREAD * num_rows:
            self._reading.append(max(time - self._regression.predict(features), 0.0) / num_unread)
            return
        self._latest.append((features, time))
        ratios = [value / self._regression.predict(row) for row, value in self._latest]
        ratio = ratios[-1]
        if not 1 / CHANGED < ratio < CHANGED:
            ratio = sorted([*ratios, 1.0, 1.0][:3])[1]
        if not 1 / CHANGED < ratio < CHANGED:
            self._regression.forget()
        self._regression.add(features, ratio * self._regression.predict(features))


def _of_rows(num_rows: float, context: int) -> tuple[float, float]:
    """The features of a batch."""
    return num_rows - 1.0, num_rows * context / 1024
