"""Which parts of a merge are worth their time, where `tree="auto"` says what time is worth."""

from collections import deque
from collections.abc import Sequence, Set
from math import sqrt
from statistics import median
from time import perf_counter

from treespec.drafters.merge.opinion_pool import Vote
from treespec.protocols import Drafter
from treespec.tree import TreeBatch

FIRST_STEPS, ASKED_EVERY = 12, 16
"""All parts are asked in the first steps, and then every so many."""
NUM_TIMES = 9
"""The last drafts whose median is a part's time: the first ones of a process, which are cold, soon do not count."""
GAIN_MEMORY = 0.95
"""The factor per step on what parts have added."""


class PartValues:
    """Per part of a merge the milliseconds of a draft, and the accepted tokens that no other part would have had."""

    def __init__(self, num_parts: int) -> None:
        self._ms = [deque[float](maxlen=NUM_TIMES) for _ in range(num_parts)]
        self._gains = [_Mean() for _ in range(num_parts)]
        self._num_steps, self._num_whole = 0, 0
        self.clock = perf_counter
        self.left_out: int | None = None
        """The part that this step does not ask."""

    def choose(self, tokens_per_ms: float, drawing: int | None = None) -> None:
        """Leave out the part whose time is worth most more than what it adds, if there is one; not the one that draws.

        One part at most: what two of them add together is not known. A part that may add enough, by the standard error
        of what it has added, stays: left out, it would show little of itself.
        """
        self._num_steps += 1
        self.left_out = None
        if tokens_per_ms > 0 and self._num_whole >= FIRST_STEPS and self._num_steps % ASKED_EVERY:
            losses = [
                tokens_per_ms * median(ms) - gain.value - gain.error
                for ms, gain in zip(self._ms, self._gains, strict=True)
            ]
            if drawing is not None:
                losses[drawing] = 0.0
            most = max(range(len(losses)), key=losses.__getitem__)
            self.left_out = most if losses[most] > 0 else None

    def propose(self, part: int, drafter: Drafter, max_depth: int) -> TreeBatch:
        """A part's trees, and its time."""
        start = self.clock()
        trees = drafter.propose(max_depth)
        self._ms[part].append(1e3 * (self.clock() - start))
        return trees

    def update(self, paths: Sequence[Sequence[Set[int] | dict[int, Vote]]]) -> None:
        """Learn from a step that asked all parts: by row, who voted for the nodes along the emitted tokens."""
        if self.left_out is not None or not paths:
            return
        self._num_whole += 1
        for part, gain in enumerate(self._gains):
            gain.add(sum(len(path) - _length_without(part, path) for path in paths) / len(paths))


class _Mean:
    """A mean in which older values count less, and its standard error."""

    def __init__(self) -> None:
        self._weight = self._sum = self._squares = 0.0

    def add(self, value: float) -> None:
        self._weight = GAIN_MEMORY * self._weight + 1
        self._sum = GAIN_MEMORY * self._sum + value
        self._squares = GAIN_MEMORY * self._squares + value**2

    @property
    def value(self) -> float:
        return self._sum / self._weight

    @property
    def error(self) -> float:
        return sqrt(max(self._squares / self._weight - self.value**2, 0.0) / self._weight)


def _length_without(part: int, path: Sequence[Set[int] | dict[int, Vote]]) -> int:
    """Nodes of a path before the first that only this part voted for."""
    return next((length for length, voters in enumerate(path) if set(voters) <= {part}), len(path))
