"""A part of a merge that costs clearly more than it adds is left out, and asked again now and then."""

import torch

from treespec.drafters.merge.opinion_pool import OpinionPool
from treespec.drafters.merge.union import UnionTree
from treespec.policies.control.parts import FIRST_STEPS, FIRST_WAIT, LONGEST_WAIT, PartChoice
from treespec.tree import HostTree, TreeBatch


class Timed:
    """A drafter that takes its time by a clock of our own."""

    def __init__(self, clock, ms):
        self.clock, self.ms, self.num_asked = clock, ms, 0

    def propose(self, max_depth):
        self.clock[0] += self.ms / 1e3
        self.num_asked += 1
        return TreeBatch(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1))


def run(num_added, num_steps=100, tokens_per_ms=0.03, ms=(20.0, 1.0), drawing=None, cold_ms=0.0, reading_ms=0.0):
    """How often each of two parts was asked; the first one adds `num_added(step)` tokens.

    `reading_ms`: what a draft takes more after steps without it.
    """
    clock, values = [0.0], PartChoice(2)
    values.clock = lambda: clock[0]
    parts = [Timed(clock, each) for each in ms]
    for step in range(num_steps):
        behind = values.left_out
        values.choose(tokens_per_ms, drawing)
        for number, part in enumerate(parts):
            if number != values.left_out:
                part.ms = ms[number] + (cold_ms if step == 0 else reading_ms if number == behind else 0.0)
                values.propose(number, part, 4)
        if values.examined is not None:
            assert values.examined == 0
            assert values.left_out is None
            values.update(num_added(step))
    return [part.num_asked for part in parts]


def test_a_part_whose_time_is_worth_clearly_more_than_what_it_adds_is_left_out():
    often = 100
    first = 1 + 3 * FIRST_STEPS  # Again after FIRST_WAIT steps, and after twice as many.
    assert run(lambda step: 0.0) == [first, often], "20 ms are worth 0.6 tokens, it adds nothing"
    assert run(lambda step: 1.0) == [often, often]
    assert run(lambda step: 0.5) == [often, often], "hardly less than it is worth"
    assert run(lambda step: float(step % 2), ms=(150.0, 1.0)) == [first, often]
    assert run(lambda step: 0.0, tokens_per_ms=0.0) == [often, often]
    assert run(lambda step: 0.0, drawing=0) == [often, often]
    assert run(lambda step: 0.0, ms=(3.0, 1.0)) == [often, often], "too cheap to be asked what it adds"


def test_one_cold_draft_leaves_no_part_out():
    """500 ms once; then 8 ms, worth a quarter of a token, and the part adds half of one."""
    assert run(lambda step: float(step % 2), ms=(8.0, 1.0), cold_ms=500.0) == [100, 100]


def test_a_part_left_out_is_asked_with_increasing_back_off_and_comes_back_when_it_adds_enough():
    """What it must read after steps without it, 200 ms, says nothing of its drafts."""
    first = 1 + FIRST_STEPS
    waits = [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT] + [LONGEST_WAIT] * 4
    again = len(waits) * FIRST_STEPS
    num_steps = first + sum(waits) + again
    assert run(lambda step: 0.0, num_steps, reading_ms=200.0) == [first + again, num_steps]
    changed, later = num_steps + 10, 400
    asked, _ = run(lambda step: 2.0 * (step > changed), changed + later, reading_ms=200.0)
    assert asked - first - again >= later - LONGEST_WAIT - FIRST_STEPS


def test_what_a_part_adds_is_found_by_a_tree_of_as_many_nodes_without_it():
    """The first drafter knows 5 6 7, the second 5 8 and 9."""
    first = HostTree([0, 5, 6, 7], [-1, 0, 1, 2], [1.0, 0.9, 0.8, 0.7])
    second = HostTree([0, 5, 8, 9], [-1, 0, 1, 0], [1.0, 0.6, 0.5, 0.3])
    union, pool = UnionTree(0, [first, second]), OpinionPool([1.0, 1.0])
    values = union.values(pool, without=0)
    assert [value > 0 for value in values] == [True, True, False, False, True, True]
    alone = UnionTree(0, [HostTree([0], [-1], [1.0]), second])
    assert sorted(values)[2:] == sorted(alone.values(pool))
    assert union.length_without(0, pool, 4, [5, 6, 7]) == 1
    assert union.length_without(1, pool, 4, [5, 6, 7]) == 3
    assert union.length_without(0, pool, 4, [5, 8, 1]) == 2
    assert union.length_without(0, pool, 2, [5, 8, 1]) == 1, "the second node is the best one"
    assert union.length_without(0, pool, 4, [6]) == 0
