"""Which parts of a merge are worth their time, where `tree="auto"` says what time is worth."""

from collections.abc import Sequence, Set
from time import perf_counter

from treespec.drafters.merge.opinion_pool import Vote
from treespec.protocols import Drafter
from treespec.tree import TreeBatch

FIRST_STEPS, ASKED_EVERY = 6, 24
"""All parts are asked in the first steps, and then every so many."""
TIME_MEMORY, GAIN_MEMORY = 0.8, 0.9
"""The factors on what is known per step."""


class PartValues:
    """Per part of a merge the milliseconds of a draft, and the accepted tokens that no other part would have had."""

    def __init__(self, num_parts: int) -> None:
        self._ms, self._gains = [0.0] * num_parts, [0.0] * num_parts
        self._num_steps, self._num_whole = 0, 0
        self.clock = perf_counter
        self.left_out: int | None = None
        """The part that this step does not ask."""

    def choose(self, tokens_per_ms: float, drawing: int | None = None) -> None:
        """Leave out the part whose time is worth most more than what it adds, if there is one; not the one that draws.

        One part at most: what two of them add together is not known.
        """
        self._num_steps += 1
        self.left_out = None
        if tokens_per_ms > 0 and self._num_whole >= FIRST_STEPS and self._num_steps % ASKED_EVERY:
            losses = [tokens_per_ms * ms - gain for ms, gain in zip(self._ms, self._gains, strict=True)]
            if drawing is not None:
                losses[drawing] = 0.0
            most = max(range(len(losses)), key=losses.__getitem__)
            self.left_out = most if losses[most] > 0 else None

    def propose(self, part: int, drafter: Drafter, max_depth: int) -> TreeBatch:
        """A part's trees, and its time."""
        start = self.clock()
        trees = drafter.propose(max_depth)
        ms = 1e3 * (self.clock() - start)
        known = self._ms[part] or ms
        self._ms[part] = TIME_MEMORY * known + (1 - TIME_MEMORY) * min(ms, 3 * known)
        return trees

    def update(self, paths: Sequence[Sequence[Set[int] | dict[int, Vote]]]) -> None:
        """Learn from a step that asked all parts: by row, who voted for the nodes along the emitted tokens."""
        if self.left_out is not None or not paths:
            return
        memory = min(GAIN_MEMORY, self._num_whole / (self._num_whole + 1))
        self._num_whole += 1
        for part, known in enumerate(self._gains):
            added = sum(len(path) - _length_without(part, path) for path in paths) / len(paths)
            self._gains[part] = memory * known + (1 - memory) * added


def _length_without(part: int, path: Sequence[Set[int] | dict[int, Vote]]) -> int:
    """Nodes of a path before the first that only this part voted for."""
    return next((length for length, voters in enumerate(path) if set(voters) <= {part}), len(path))
