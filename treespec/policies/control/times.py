"""What a step costs, estimated from the past: the target's pass by its number of nodes, and drafting.

Axis letters: t numbers of nodes in a curve of times.

All times are milliseconds. A time is believed only after a median of three, so that one outlier moves nothing: not the
first one either, whose kernels and memory are cold. Until there are three, those missing count as what was expected.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from math import log

import numpy as np
from jaxtyping import Float, Int

from treespec.policies.control.regression import TimeRegression

MOST_NODES = 64
"""Curves reach to this many nodes per row."""
MEMORY = 24.0
"""Observations that an estimate remembers."""
FIRST_WEIGHT, FIRST_WEIGHT_OF_ROWS = 6.0, 1.0
"""Observations that a measured profile counts for: it is of one row, and says less of several."""
NUM_PLAIN = 3
"""Plain steps of several rows after which their time is known."""
UNMEASURED = {1: 1.0, 16: 1.3, 64: 2.5}
"""A pass's time by nodes, relative to one node, where nothing was measured."""
FORGETTING = 0.97
CHANGED = 2.0
"""Where drafts take more or less than this many times what is predicted, what was observed before is dropped."""
RENEWED_EVERY = 4
"""Steps after which estimates are made again, once there were some."""
DETAIL_MEMORY = 0.98
"""The factor per step on what is known beyond the profile about a number of nodes."""

_BITS = np.array([n.bit_length() for n in range(MOST_NODES + 1)])


class PassTimes:
    """The time of everything in a step but drafting: the target's pass, verification, commit.

    profile(B n) x exp(level + detail), where the level is learned by rows and context and the detail by rows and number
    of nodes: a profile gives the shape, the rounds served correct it.

    Args:
        profile_ms: measured passes of one row by number of nodes; None: nothing was measured.
    """

    def __init__(self, profile_ms: Mapping[int, float] | None = None) -> None:
        profile = dict(sorted((profile_ms or UNMEASURED).items()))
        if len(profile) == 1:  # One number has no shape.
            ((count, ms),) = profile.items()
            profile = {count * nodes: ms * factor for nodes, factor in UNMEASURED.items()}
        self._nodes, self._ms = np.array(list(profile), float), np.array(list(profile.values()), float)
        self._has_profile = profile_ms is not None
        self._levels: dict[tuple[int, int], _Factor] = {}
        self._details: dict[tuple[int, int], _Factor] = {}
        self._num_plain = Counter[tuple[int, int]]()
        self._num_updates = 0
        self._shapes: dict[int, Float[np.ndarray, "t"]] = {}
        self._curves: dict[tuple[int, int, int], Float[np.ndarray, "t"]] = {}

    def curve(self, num_rows: int, context: int) -> Float[np.ndarray, "t"]:
        """The time of a step with n nodes per row, for n up to `MOST_NODES`; number 0 is not used.

        Made again after every fourth step, after every step at first: it moves slowly.
        """
        count = self._num_updates
        key = num_rows, context.bit_length(), count if count <= 8 else 8 + count // RENEWED_EVERY
        if key not in self._curves:
            details = np.array([self._detail(num_rows, 1 << bits >> 1) for bits in range(MOST_NODES.bit_length() + 1)])
            self._curves = {key: self._shape(num_rows) * np.exp(self._level(num_rows, context) + details[_BITS])}
        return self._curves[key]

    def update(self, num_rows: int, context: int, num_nodes: int, ms: float) -> None:
        """Learn the time of a step with at most `num_nodes` nodes per row and a text of `context` tokens."""
        self._num_updates += 1
        level_key, detail_key = _key(num_rows, context), _key(num_rows, num_nodes)
        weight = FIRST_WEIGHT if num_rows == 1 else FIRST_WEIGHT_OF_ROWS
        if level_key not in self._levels:
            self._levels[level_key] = _Factor(self._level(num_rows, context), weight if self._has_profile else 0.0)
        if detail_key not in self._details:
            self._details[detail_key] = _Factor(0.0, weight)
        self._num_plain[level_key] += num_nodes == 1
        level, detail = self._levels[level_key], self._details[detail_key]
        expected = float(self._shape(num_rows)[min(num_nodes, MOST_NODES)])
        error = log(max(ms, 1e-6) / expected) - level.value - detail.value
        for factor in self._details.values():
            factor.value *= DETAIL_MEMORY  # What was measured long ago, at another load, is not believed for good.
        # A draft's time that was not expected says little of plain steps whose time is known.
        is_of_draft = num_rows > 1 and num_nodes > 1 and self.is_plain_known(num_rows, context)
        level.update(error / 4 if is_of_draft else error)
        detail.update(error if is_of_draft else error / 2)

    def is_plain_known(self, num_rows: int, context: int) -> bool:
        """Whether plain steps of this many rows were timed, or need not be: a profile is of one row."""
        return num_rows == 1 or self._num_plain[_key(num_rows, context)] >= NUM_PLAIN

    def _shape(self, num_rows: int) -> Float[np.ndarray, "t"]:
        """The profile by nodes per row, beyond its last number of nodes along its last slope."""
        if num_rows not in self._shapes:
            nodes = num_rows * np.arange(MOST_NODES + 1)
            slope = max(self._ms[-1] - self._ms[-2], 0.0) / (self._nodes[-1] - self._nodes[-2])
            beyond = slope * np.maximum(nodes - self._nodes[-1], 0)
            self._shapes[num_rows] = np.interp(nodes, self._nodes, self._ms) + beyond
        return self._shapes[num_rows]

    def _level(self, num_rows: int, context: int) -> float:
        rows, length = _key(num_rows, context)
        near = min(self._levels, key=lambda k: (abs(k[0] - rows), abs(k[1] - length)), default=None)
        return 0.0 if near is None else self._levels[near].value

    def _detail(self, num_rows: int, num_nodes: int) -> float:
        found = self._details.get(_key(num_rows, num_nodes))
        return 0.0 if found is None else found.value


class DraftTimes:
    """The time of drafting: a start, draft passes and a little per node, by regression on the steps served.

    Args:
        level_ms: what a level is expected to take before anything was observed; 0: drafting takes no pass per level.
    """

    def __init__(self, level_ms: float = 0.0) -> None:
        precision = np.array([1.0, 4.0 if level_ms > 0 else 400.0, 400.0])
        self._regression = TimeRegression(np.array([0.2, level_ms, 0.01]), precision, FORGETTING)
        self._latest: deque[tuple[tuple[float, ...], float]] = deque(maxlen=3)
        self._num_updates = 0

    @property
    def coefficients(self) -> Float[np.ndarray, "3"]:
        """Milliseconds of a start, of a draft pass and of a node."""
        return self._regression.coefficients

    @property
    def level_ms(self) -> float:
        """The predicted time of one more draft pass."""
        return float(self.coefficients[1])

    def predict(self, num_passes: Float[np.ndarray, "C"], num_nodes: Int[np.ndarray, "C"]) -> Float[np.ndarray, "C"]:
        """Milliseconds for this many draft passes and nodes, all rows' together."""
        start, level, node = self.coefficients
        return start + level * num_passes + node * num_nodes

    def of_step(self, num_passes: int, num_nodes: int) -> float:
        """What one step's drafting is predicted to take."""
        return self._regression.predict((1.0, num_passes, num_nodes))

    def update(self, num_passes: int, num_nodes: int, ms: float) -> None:
        """Learn the time of one step's drafting."""
        features = 1.0, num_passes, num_nodes
        self._latest.append((features, ms))
        ratio = _median([ms / max(self._regression.predict(row), 1e-3) for row, ms in self._latest], 1.0)
        if not 1 / CHANGED < ratio < CHANGED:
            self._regression.forget()
        self._regression.add(features, ratio * max(self._regression.predict(features), 1e-3))
        self._num_updates += 1
        if self._num_updates <= 8 or self._num_updates % RENEWED_EVERY == 0:
            self._regression.fit()


class ReadingTime:
    """The time a drafter takes to read the prompt, and what was decoded without it, before it drafts.

    None at first: some drafters read while the target reads the prompt, and lookups in no time.
    """

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=3)

    def predict(self, num_tokens: int) -> float:
        """Milliseconds for this many tokens, all rows' together."""
        return num_tokens * _median(self._latest, 0.0)

    def update(self, num_tokens: int, ms: float) -> None:
        """Learn the time that this many tokens took."""
        self._latest.append(max(ms, 0.0) / num_tokens)


class _Factor:
    """The running mean of a logarithm."""

    def __init__(self, value: float, weight: float) -> None:
        self.value, self._weight = value, weight
        self._errors: deque[float] = deque(maxlen=3)

    def update(self, error: float) -> None:
        self._errors.append(error)
        # Without a profile the first time is all that is known.
        believed = _median(self._errors, 0.0) if self._weight else error
        self._weight = min(self._weight + 1, MEMORY)
        self.value += believed / self._weight


def _median(values: Sequence[float], expected: float) -> float:
    """The median of three; missing values count as `expected`."""
    return sorted([*values, *[expected] * (3 - len(values))])[1]


def _key(num_rows: int, count: int) -> tuple[int, int]:
    """Numbers of rows and of nodes or tokens that share an estimate: those of one power of two."""
    return num_rows.bit_length(), count.bit_length()
