"""Sequoia's tree: against the paper's dynamic programme, and from measured acceptance."""

from functools import cache

import numpy as np
import pytest
from helpers.grown_trees import rank_paths
from helpers.toy_models import TableLM, TableSource

from treespec.engine.stats import SpeculationStats
from treespec.errors import ConfigError
from treespec.policies import KAry, Sequoia, optimal_paths
from treespec.tree import MIXED, TokenTree, Verdict, parse_paths


def programme(probs, max_nodes, max_depth):
    """Sequoia's dynamic programme: the best expected number of tokens for every (number of nodes, depth) up to these.

    `best(m, l, b, d)`: m nodes exactly, at most l levels, whose root at depth d has its first b children.
    """

    @cache
    def best(m, levels, b, depth):
        if b == 0:
            return 1.0 if m == 1 else -np.inf
        if m <= b or levels < 2 or depth >= len(probs) or b > len(probs[depth]):
            return -np.inf
        values = [
            best(y, levels, b - 1, depth) + probs[depth][b - 1] * below(m - y, levels - 1, depth + 1)
            for y in range(1, m)
        ]
        return max(values)

    @cache
    def below(m, levels, depth):
        return max(best(m, levels, b, depth) for b in range(m))

    return {
        (m, levels): max(below(n, levels, 0) for n in range(1, m + 1))
        for m in range(1, max_nodes + 1)
        for levels in range(1, max_depth + 2)
    }


def expected_tokens(paths, probs):
    return 1 + sum(np.prod([probs[depth][rank] for depth, rank in enumerate(path)]) for path in paths)


def falling_table(seed, num_depths, num_ranks, digits=None):
    rng = np.random.default_rng(seed)
    table = -np.sort(-rng.random((num_depths, num_ranks)) * rng.choice([0.3, 1.0], (num_depths, 1)), axis=1)
    return (table if digits is None else table.round(digits)).tolist()


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("seed", range(2))
def test_heap_equals_the_dynamic_programme(seed, digits):
    """12 sizes x 8 depths x 4 tables, 384 cells without the root alone; rounded tables have many ties and zeros."""
    probs = falling_table(seed, 8, 4, digits)
    cells = {cell: value for cell, value in programme(probs, 12, 8).items() if cell[1] > 1}
    assert len(cells) == 12 * 8
    for (num_nodes, levels), value in cells.items():
        paths = optimal_paths(probs, num_nodes, levels - 1)
        assert len(paths) < num_nodes
        assert max(map(len, paths), default=0) < levels
        assert expected_tokens(paths, probs) == pytest.approx(value, abs=1e-12)
        assert parse_paths(paths) == paths, "connected, and no rank without the ranks before it"
        values = [np.prod([probs[depth][rank] for depth, rank in enumerate(path)]) for path in paths]
        assert values == pytest.approx(sorted(values, reverse=True), abs=1e-12)


def test_one_row_stands_for_every_depth():
    assert optimal_paths([0.6, 0.2], 6) == optimal_paths([[0.6, 0.2]] * 9, 6)
    assert optimal_paths([0.9], 4) == [(0,), (0, 0), (0, 0, 0)]
    assert optimal_paths([0.6, 0.2, 0.1], 9, max_depth=1) == [(0,), (1,), (2,)]
    assert optimal_paths(np.array([[0.6, 0.2], [0.5, 0.1]]), 4) == optimal_paths([[0.6, 0.2], [0.5, 0.1]], 4)
    assert optimal_paths([], 5) == optimal_paths([0.5], 1) == optimal_paths([[0.0]], 4) == []
    assert len(optimal_paths([[0.6, 0.2], [0.5, 0.1]], 40)) == 6  # All that there are.


def test_the_policy_grows_this_tree():
    probs = falling_table(3, 3, 3)
    batch = Sequoia(probs, 9).grow(TableSource([1, 2], TableLM(5)), 9)
    for tree in batch.trees:
        assert sorted(rank_paths(tree)) == sorted(optimal_paths(probs, 9))
    assert Sequoia(probs, 9).max_nodes == 9
    assert batch.is_width_fixed
    assert batch.sampling_schemes > {"without_replacement"}


def test_measured_acceptance_counts_children_of_accepted_nodes():
    #            0 -> 1, 2;  1 -> 3, 4;  2 -> 5
    tree = TokenTree.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0)], [9, 1, 2, 3, 4, 5])
    stats = SpeculationStats()
    stats.record([tree], [Verdict((0, 1, 4), 7, True)], [[1, 4, 7]])
    stats.record([tree], [Verdict((0, 2), 7, False)], [[2, 7]])
    stats.record([tree], [Verdict((0, 1, 3), 7, True)], [[1]])  # cut off: nothing is known of node 1's children
    stats.record([tree], [Verdict((0,), 7, False)], [[7]])
    assert stats.acceptance_per_depth_and_rank == [[0.5, 0.25], [0.0, 1.0]]
    other = SpeculationStats()
    other.add(stats)
    assert other.acceptance_per_depth_and_rank == stats.acceptance_per_depth_and_rank
    grown = [policy.grow(TableSource([0], TableLM(5)), 9) for policy in (Sequoia.from_stats(stats, 9), KAry((2, 2)))]
    assert sorted(rank_paths(grown[0].trees[0])) == sorted(rank_paths(grown[1].trees[0]))
    assert Sequoia.from_stats(stats, 9, MIXED).children == MIXED
    with pytest.raises(ConfigError, match="nothing was drafted"):
        Sequoia.from_stats(SpeculationStats(), 4)
