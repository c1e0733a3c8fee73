"""The simulator: replays on drafts with a known outcome, costs recovered from times made of them, the roofline."""

import pytest

from benchmarks.simulator.costs import EXAMPLE, HEAD, Costs, MeanStep, fit_draft, fit_passes
from benchmarks.simulator.hardware import H200, LLAMA_8B, step_costs
from benchmarks.simulator.replay import follow, policies, replayed
from benchmarks.simulator.scale import best, report
from treespec.tree import HostTree, TreeBatch

TEXT = list(range(10, 26))


def recorded_text(rank: int) -> dict:
    """A text whose next two tokens are always in the draft, the first as the child of this rank."""
    trees = []
    for position in range(len(TEXT)):
        root = TEXT[position - 1] if position else 1
        following = [*TEXT[position:], 0, 0]
        first = [following[0], 99] if rank == 0 else [99, following[0]]
        right = 1 + first.index(following[0])
        tree = HostTree([root, *first, following[1]], [-1, 0, 0, right], [1.0, 0.5, 0.4, 0.3])
        trees.append([tree, HostTree([root], [-1], [1.0]), HostTree([root], [-1], [1.0])])
    return {"prompt": [1], "text": TEXT, "trees": trees}


@pytest.mark.parametrize(("policy", "rank", "tokens_per_pass"), [
    ("plain", 0, 1.0), ("chain of 2", 0, 16 / 6), ("chain of 2", 1, 16 / 16), ("tree of 4", 1, 16 / 6),
])  # fmt: skip
def test_a_replay_accepts_what_the_text_goes_on_with(policy, rank, tokens_per_pass):
    replay = replayed([recorded_text(rank)], "head", policies()[policy](), EXAMPLE)
    assert replay.num_tokens / replay.num_steps == pytest.approx(tokens_per_pass)
    step = replay.mean_step
    assert replay.ms_per_token == pytest.approx((step.draft_ms + step.rest_ms) / tokens_per_pass)


def test_auto_drafts_where_drafts_pay():
    replay = replayed(8 * [recorded_text(1)], "head", policies()["auto"](), EXAMPLE)
    assert replay.num_tokens / replay.num_steps > 2
    assert replay.names["plain"] < replay.names.total() / 4


def test_follow_stops_at_the_first_token_that_was_not_drafted():
    trees = TreeBatch.from_host_trees([HostTree([1, 2, 3], [-1, 0, 1], [1.0, 0.5, 0.2])])
    assert follow(trees, [2, 4, 5]) == ([0, 1], [2, 4])


def test_costs_are_recovered_from_times_made_of_them():
    profile = {1: 10.0, 8: 12.0, 32: 30.0}
    steps = [MeanStep(n, p, 2 + 3 * p + 0.1 * n, 1.2 * (10 + 2 * (n - 1) / 7) + 1) for n, p in ((2, 1), (4, 2), (8, 5))]
    assert fit_draft(steps, has_passes=True) == pytest.approx((2, 3, 0.1))
    assert fit_passes(profile, steps) == pytest.approx({n: 1.2 * ms + 1 for n, ms in profile.items()})
    assert Costs(profile, {HEAD: (0.0, 2.5, 0.0)}).level_share == 0.25
    assert Costs(profile, {}).of_pass(64) == pytest.approx(54.0)


def test_a_pass_is_bound_by_memory_for_few_tokens_and_by_arithmetic_for_many():
    few, many = step_costs(H200, LLAMA_8B, 1, 1000), step_costs(H200, LLAMA_8B, 256, 1000)
    assert few.of_pass(16) == few.of_pass(1)
    assert many.of_pass(16) > 4 * many.of_pass(1)


def test_the_report_names_the_best_of_each_kind_and_where_plain_decoding_wins():
    slow = {"plain": 100.0, "chain of 2": 90.0, "chain of 4": 80.0, "tree of 8": 70.0, "auto": 99.0}
    fast = {"plain": 100.0, "chain of 2": 150.0, "chain of 4": 160.0, "tree of 8": 200.0, "auto": 199.0}
    assert best(fast, "chain") == "chain of 4"
    text = report({"a case": {1: fast, 64: slow}})
    assert "| 1 | 100 | chain of 4: 1.60 | tree of 8: 2.00 | 1.99 |" in text
    assert "Plain decoding passes both from 64 texts at once." in text
