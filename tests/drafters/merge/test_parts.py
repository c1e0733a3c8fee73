"""A part of a merge that costs more than it adds is left out, and asked again now and then."""

import torch

from treespec.drafters.merge.opinion_pool import Vote
from treespec.drafters.merge.parts import ASKED_EVERY, FIRST_STEPS, PartValues
from treespec.tree import TreeBatch

VOTE = Vote(0, 0.5)


class Timed:
    """A drafter that takes its time by a clock of our own."""

    def __init__(self, clock, ms):
        self.clock, self.ms, self.num_asked = clock, ms, 0

    def propose(self, max_depth):
        self.clock[0] += self.ms / 1e3
        self.num_asked += 1
        return TreeBatch(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1))


def run(path, num_steps=100, tokens_per_ms=0.03, ms=(20.0, 1.0)):
    """How often each of two parts was asked; `path`: who voted for the emitted tokens of every step."""
    clock, values = [0.0], PartValues(2)
    values.clock = lambda: clock[0]
    parts = [Timed(clock, each) for each in ms]
    for _ in range(num_steps):
        values.choose(tokens_per_ms)
        for number, part in enumerate(parts):
            if number != values.left_out:
                values.propose(number, part, 4)
        values.update([path])
    return [part.num_asked for part in parts]


def test_a_part_that_adds_less_than_its_time_is_worth_is_left_out():
    both, slow_alone = {0: VOTE, 1: VOTE}, {0: VOTE}
    times_asked = FIRST_STEPS + 100 // ASKED_EVERY
    assert run([both, both]) == [times_asked, 100], "the slow part adds nothing"
    assert run([both, slow_alone]) == [100, times_asked], "20 ms are worth 0.6 tokens, the slow part adds 1"
    assert run([both, slow_alone], ms=(50.0, 1.0)) == [times_asked, 100]
    assert run([slow_alone, both]) == [100, times_asked], "beyond a node that the other alone has it adds nothing"
    assert run([both, both], tokens_per_ms=0.0) == [100, 100]


def test_one_cold_draft_leaves_no_part_out():
    clock, values, both = [0.0], PartValues(2), {0: VOTE, 1: VOTE}
    values.clock = lambda: clock[0]
    slow, quick = Timed(clock, 500.0), Timed(clock, 1.0)
    for step in range(100):
        values.choose(0.03)
        assert values.left_out != 0, step
        for number, part in enumerate((slow, quick)):
            if number != values.left_out:
                values.propose(number, part, 4)
        values.update([[both, {0: VOTE}] if step % 2 else [both]])
        slow.ms = 8.0  # Worth a quarter of a token, and the part adds half of one.
