"""The cost of a step: the target's pass by nodes, rows and context, and the draft, both learned from the steps served.

Times are counted in passes over one token, whose milliseconds are a median of the latest steps: what slows a machine
slows drafts and passes alike, so it changes the milliseconds and no choice.

Lists, no arrays: after a pass nothing is cached, and numpy's and LAPACK's first instructions take longer than the sums.
"""

from bisect import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import mul
from statistics import median_low

ON_HOST = {1: 1.0, 4: 1.1, 8: 1.25, 12: 1.45, 16: 1.65, 32: 2.8}
ON_ACCELERATOR = {1: 1.0, 2: 1.16, 64: 1.2}
"""A pass's time by tokens over one token's, where none was measured: on hosts between two machines', so that first
calls take trees of 8 (results/peers/first.md); on an accelerator an 8B model's (results/accelerator.md)."""
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
"""The least predicted times, in passes over one token: where a time of no pass fits steps that were all large and as
fast, the error of the next one, relative to that, would outweigh all others for good."""
MANY_UNREAD = 16
"""Tokens per row: where a drafter has to read more, a draft's time is mostly reading, and teaches that time only."""


def solve(system: Sequence[list[float]]) -> list[float]:
    """The solution of a positive definite system of equations, each with its value last, by elimination."""
    if not system:
        return []
    (pivot, *first), *rest = system
    found = solve([[a - factor / pivot * b for a, b in zip(row, first, strict=True)] for factor, *row in rest])
    return [(first[-1] - sum(map(mul, first, found))) / pivot, *found]


class Times:
    """A time: a scale, the median of the latest, times a sum of features with coefficients that are never negative.

    The coefficients are found by ridge regression on relative errors, recent ones weighted more. The penalty is that of
    a normal prior: it grows with the variance of the errors so far.

    Args:
        prior: the coefficients before anything was observed.
        units: by how much each may well be off.
        least: the least time that is predicted, without the scale.
        scale: the first one, which counts for two times, as a process's first are slow; 0: the first time says it.
    """

    def __init__(self, prior: Sequence[float], units: Sequence[float], least: float, scale: float = 0.0) -> None:
        self.coefficients, self.least, indices = list(prior), least, range(len(prior))
        self._pull = [[float(i == j) / units[i] ** 2 for j in indices] + [prior[i] / units[i] ** 2] for i in indices]
        self._errors = FIRST_ERRORS * FIRST_ERROR**2, FIRST_ERRORS
        """The sum of squares of relative errors, and their number."""
        self._sums = [[0.0] * len(row) for row in self._pull]
        """Products of the features with each other and, last, with the values."""
        self.scale, self.latest = scale or 1.0, deque([scale] * 2 if scale else (), maxlen=SCALE_STEPS)

    def relative(self, features: Sequence[float]) -> float:
        """The predicted time, without the scale."""
        return max(sum(map(mul, self.coefficients, features)), self.least)

    def add(self, features: Sequence[float], time: float) -> None:
        """Learn one time."""
        expected = self.relative(features)
        self.latest.append(max(time, 1e-6) / expected)
        self.scale = median_low(self.latest)  # The lower of two, as a process's first times are long.
        value = min(max(time / self.scale, expected / MOST_ERROR), MOST_ERROR * expected)
        squares, number = self._errors
        self._errors = FORGETTING * squares + (value / expected - 1) ** 2, FORGETTING * number + 1
        observed = [each / expected for each in (*features, value)]
        rows = zip(self._sums, observed[:-1], strict=True)
        self._sums = [[FORGETTING * a + one * b for a, b in zip(row, observed, strict=True)] for row, one in rows]
        variance = max(self._errors[0] / self._errors[1], LEAST_ERROR**2)
        used = seen = [index for index, row in enumerate(self._sums) if row[index]]  # The other coefficients stay.
        pairs = zip(self._sums, self._pull, strict=True)
        system = [[a + variance * b for a, b in zip(*pair, strict=True)] for pair in pairs]
        while min(found := solve([[system[i][j] for j in (*used, -1)] for i in used]), default=0.0) < 0:
            used = [index for index, value in zip(used, found, strict=True) if value >= 0]  # The others are zero.
        known = dict.fromkeys(seen, 0.0) | dict(zip(used, found, strict=True))
        self.coefficients = [known.get(index, old) for index, old in enumerate(self.coefficients)]


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
        # A pass over fewer tokens takes no longer: what says otherwise was measured while the machine was busy.
        self._tokens, ms = list(profile), list(accumulate(reversed(profile.values()), min))[::-1]
        self._more = [each / ms[0] - 1 for each in ms]
        pairs = zip(pairwise(self._tokens), pairwise(self._more), strict=True)
        self._slopes = [(more - less) / (last - first) for (first, last), (less, more) in pairs]
        self.slope = self._slopes[-1]
        """The added time of one more token among many, in passes over one token."""
        units = GUESSED_UNITS if pass_ms is None and shape is ON_HOST else KNOWN_UNITS
        super().__init__((1.0, 1.0, 0.0, self.slope, 0.0), units, LEAST_PASS, ms[0] if pass_ms else 0.0)

    def predict(self, num_tokens: float, num_rows: int = 1, context: int = 0) -> float:
        """Milliseconds of a step over this number of tokens, of all rows; past those measured along the last slope."""
        constant, shape, linear, per_row, per_token = self.coefficients
        least = max(constant + per_row * (num_rows - 1) + per_token * num_rows * context / 1024, self.least)
        nodes = num_tokens - num_rows
        return self.scale * (least + shape * self._more_of(nodes + 1) + linear * self.slope * nodes)

    def update(self, num_tokens: int, num_rows: int, context: int, ms: float) -> None:
        """Learn the time of one step."""
        nodes = num_tokens - num_rows
        self.add((1.0, self._more_of(nodes + 1), self.slope * nodes, num_rows - 1.0, num_rows * context / 1024), ms)

    def _more_of(self, tokens: float) -> float:
        index = bisect(self._tokens, tokens, 1, len(self._tokens) - 1) - 1
        return self._more[index] + self._slopes[index] * max(tokens - self._tokens[index], 0.0)


class DraftTimes(Times):
    """The time of drafting in passes over one token: a start, a draft pass per level, a little per node, reading.

    `pass_share`, `token_share`: what a level's pass and reading a token are expected to take at first; 0 for lookups.
    """

    def __init__(self, pass_share: float = 0.0, token_share: float = 0.0) -> None:
        super().__init__((0.01, pass_share, 0.0005), (0.3, 2 * pass_share or 0.001, 0.01), LEAST_DRAFT, 1.0)
        self._reading = deque([token_share] * 2, maxlen=3)  # By token. Lookups, and some drafters, read in no time.

    def predict(self, num_levels: float, num_nodes: int) -> float:
        """A draft of this many levels and nodes, all rows' together; none takes no time."""
        start, level, node = self.coefficients
        return self.scale * (start + level * num_levels + node * num_nodes) if num_nodes else 0.0

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
