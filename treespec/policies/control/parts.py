"""Which part of a merge is not worth its time, where `tree="auto"` says what time is worth."""

from collections import deque
from math import sqrt
from statistics import fmean, median, pstdev
from time import perf_counter

from treespec.protocols import Drafter
from treespec.tree import TreeBatch

FIRST_STEPS = 6
"""All parts are asked until this many steps have said what one adds: at first, and when one left out is tried again."""
FIRST_WAIT, LONGEST_WAIT = 16, 96
"""Steps without a part before it is asked again, doubled while it is not worth its time: a head then reads all that was
decoded without it, which takes batches a step's time."""
EXAMINED_EVERY = 4
"""After the first steps: how many of the steps that ask all parts measure what one adds."""
CLEARLY = 1.5
"""A part is left out where its time is worth this many times what it adds: one that hardly pays costs little."""
LEAST_WORTH = 0.1
"""Accepted tokens that a part's time must be worth before it is measured what it adds, which takes time as well."""
NUM_TIMES, NUM_GAINS = 9, 16
"""The last drafts whose median is a part's time, so that cold ones soon do not count, and whose mean is its gain."""


class PartChoice:
    """Per part of a merge the milliseconds of a draft, and the accepted tokens that it added to the others'.

    Attributes:
        left_out: the part that this step does not ask.
        examined: the part of which `update` needs to know what it added, in some of the steps that ask all.
    """

    def __init__(self, num_parts: int) -> None:
        self._ms = [deque([0.0], maxlen=NUM_TIMES) for _ in range(num_parts)]
        self._gains = [deque[float](maxlen=NUM_GAINS) for _ in range(num_parts)]
        self._num_steps, self._num_without, self._wait = 0, 0, FIRST_WAIT
        self.left_out: int | None = None
        self.examined: int | None = None
        self._behind: int | None = None  # The part that did not follow the last step.
        self.clock = perf_counter

    def choose(self, tokens_per_ms: float, drawing: int | None = None) -> None:
        """Leave out the slowest part where its time is worth more than what it adds; never the one that draws.

        One part at most: what two of them add together is not known. A part that may add enough, by a standard error of
        what it has added, stays: left out, it would show little of itself.

        Args:
            tokens_per_ms: accepted tokens per row that time is worth.
        """
        self._num_steps, self._behind, self.left_out, self.examined = self._num_steps + 1, self.left_out, None, None
        times = [0.0 if part == drawing else median(ms) for part, ms in enumerate(self._ms)]
        part = max(range(len(times)), key=times.__getitem__)
        worth, gains = tokens_per_ms * times[part], self._gains[part]
        if worth < LEAST_WORTH:
            return
        if len(gains) < FIRST_STEPS:
            self.examined = part
        elif worth <= CLEARLY * (fmean(gains) + pstdev(gains) / sqrt(len(gains))):
            self._num_without, self._wait = 0, FIRST_WAIT
            self.examined = part if self._num_steps % EXAMINED_EVERY == 0 else None
        elif self._num_without < self._wait:
            self._num_without, self.left_out = self._num_without + 1, part
        else:
            self._num_without, self._wait, self.examined = 0, min(2 * self._wait, LONGEST_WAIT), part
            gains.clear()  # What it added to another text would keep it out of this one for hundreds of steps.

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
        self._gains[self.examined].append(num_added)
