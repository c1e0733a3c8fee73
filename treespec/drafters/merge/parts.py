"""Which part of a merge is not worth its time, where `tree="auto"` says what time is worth."""

from collections import deque
from math import sqrt
from statistics import median
from time import perf_counter

from treespec.protocols import Drafter
from treespec.tree import TreeBatch

FIRST_STEPS = 12
"""All parts are asked until this many steps have said what one adds."""
FIRST_WAIT, LONGEST_WAIT = 16, 64
"""Steps without a part before it is asked again, doubled while it is not worth its time: a head then reads all that was
decoded without it, which takes batches a step's time."""
EXAMINED_EVERY = 4
"""After the first steps: how many of the steps that ask all parts measure what one adds."""
CLEARLY = 1.5
"""A part is left out where its time is worth this many times what it adds: one that hardly pays costs little."""
LEAST_WORTH = 0.1
"""Accepted tokens that a part's time must be worth before it is asked what it adds, which takes time as well."""
NUM_TIMES = 9
"""The last drafts whose median is a part's time: the first ones of a process, which are cold, soon do not count."""
GAIN_MEMORY = 0.98
"""The factor per step on what parts have added."""


class PartValues:
    """Per part of a merge the milliseconds of a draft, and the accepted tokens that it added to the others'.

    Attributes:
        left_out: the part that this step does not ask.
        examined: the part of which `update` needs to know what it added, in some of the steps that ask all.
    """

    def __init__(self, num_parts: int) -> None:
        self._ms = [deque[float](maxlen=NUM_TIMES) for _ in range(num_parts)]
        self._gains = [_Mean() for _ in range(num_parts)]
        self._num_steps = self._num_without = 0
        self._wait = FIRST_WAIT
        self.clock = perf_counter
        self.left_out: int | None = None
        self.examined: int | None = None
        self._behind: int | None = None  # The part that did not follow the last step.

    def choose(self, tokens_per_ms: float, drawing: int | None = None) -> None:
        """Leave out the slowest part where its time is worth more than what it adds; never the one that draws.

        One part at most: what two of them add together is not known. A part that may add enough, by two standard errors
        of what it has added, stays: left out, it would show little of itself.
        """
        self._num_steps += 1
        self._behind, self.left_out, self.examined = self.left_out, None, None
        times = [median(ms) if ms and part != drawing else 0.0 for part, ms in enumerate(self._ms)]
        part = max(range(len(times)), key=times.__getitem__)
        worth, gain = tokens_per_ms * times[part], self._gains[part]
        if worth < LEAST_WORTH:
            return
        if gain.count >= FIRST_STEPS and worth > CLEARLY * (gain.value + 2 * gain.error):
            self._num_without += 1
            if self._num_without <= self._wait:
                self.left_out = part
                return
            self._num_without, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
            self.examined = part
        else:
            self._num_without, self._wait = 0, FIRST_WAIT
            if gain.count < FIRST_STEPS or self._num_steps % EXAMINED_EVERY == 0:
                self.examined = part

    def propose(self, part: int, drafter: Drafter, max_depth: int) -> TreeBatch:
        """A part's trees, and its time: not where it has to read first what was decoded without it."""
        start = self.clock()
        trees = drafter.propose(max_depth)
        if part != self._behind:
            self._ms[part].append(1e3 * (self.clock() - start))
        return trees

    def update(self, num_added: float) -> None:
        """Learn how many accepted tokens, a mean over rows, the others would not have had without `examined`."""
        assert self.examined is not None
        self._gains[self.examined].add(num_added)


class _Mean:
    """A mean in which older values count less, and its standard error."""

    def __init__(self) -> None:
        self._weight = self._sum = self._squares = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1
        self._weight = GAIN_MEMORY * self._weight + 1
        self._sum = GAIN_MEMORY * self._sum + value
        self._squares = GAIN_MEMORY * self._squares + value**2

    @property
    def value(self) -> float:
        return self._sum / self._weight

    @property
    def error(self) -> float:
        return sqrt(max(self._squares / self._weight - self.value**2, 0.0) / self._weight)
