"""The statistics of hand-made steps, counted on fingers."""

from treespec import TokenTree, Verdict
from treespec.engine.stats import SpeculationStats

BUSH = TokenTree.from_paths([(0,), (1,), (0, 0)], tokens=[9, 1, 2, 3])
CHAIN = TokenTree.from_paths([(0,), (0, 0)], tokens=[9, 1, 3])


def recorded() -> SpeculationStats:
    """Two passes: of five drafted tokens two are accepted, then of three one, and another is cut off."""
    stats = SpeculationStats()
    verdicts = [Verdict((0, 1, 3), 7, True), Verdict((0,), 8, False)]
    stats.record([BUSH, CHAIN], verdicts, [[1, 3, 7], [8]])
    stats.record([BUSH], [Verdict((0, 1, 3), 7, True)], [[1]])
    return stats


def test_each_number_counts_what_its_name_says():
    stats = recorded()
    assert stats.draft_acceptance_rate == 3 / 8, "the share of drafted tokens"
    assert SpeculationStats().draft_acceptance_rate == 0
    assert stats.mean_acceptance_length == 1 + 3 / 3, "with the token that follows"
    assert stats.block_efficiency == 5 / 3
    assert stats.acceptance_histogram == {0: 1, 1: 1, 2: 1}
    assert stats.num_target_passes == 2
    assert stats.acceptance_per_depth == {1: 2 / 3, 2: 1 / 3}
    assert stats.acceptance_per_node == {1: 2 / 3, 2: 0, 3: 1 / 2}
    assert stats.num_accepted_at_rank == {0: 3}


def test_totals_are_sums():
    total = SpeculationStats()
    total.add(recorded())
    total.add(recorded())
    assert total.num_draft_tokens == 16
    assert total.draft_acceptance_rate == 3 / 8
    assert total.num_accepted_at_depth == {1: 4, 2: 2}
