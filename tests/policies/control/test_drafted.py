"""Drafted trees as arrays, and the drafter's confidences corrected by what was accepted."""

import numpy as np
import pytest

from treespec.policies.control.drafted import ConfidenceTable, DraftedTrees
from treespec.tree import HostTree, TreeBatch

WIDE = HostTree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 3, 1], [1.0, 0.6, 0.3, 0.48, 0.12, 0.06])
CHAIN = HostTree([9, 1, 2], [-1, 0, 1], [1.0, 0.5, 0.4])


def read(table, *trees):
    drafted = DraftedTrees(TreeBatch.from_host_trees(trees))
    drafted.estimate(table.estimates(drafted))
    return drafted


def test_depths_ranks_and_probabilities_are_those_of_the_trees():
    trees = TreeBatch.from_host_trees([WIDE, CHAIN])
    drafted = read(ConfidenceTable(), WIDE, CHAIN)
    for row, tree in enumerate(trees.trees):
        count = tree.num_nodes
        assert drafted.depths[row, :count].tolist() == tree.depths
        assert drafted.num_nodes[row] == count - 1
        siblings = [tree.children_lists[parent].index(node) for node, parent in enumerate(tree.parent_list) if node]
        assert drafted.ranks[row, 1:count].tolist() == siblings
        assert drafted.path_probs[row, 1:count] == pytest.approx((WIDE, CHAIN)[row].values[1:])
        assert drafted.path_probs[row, count:].tolist() == [0.0] * (trees.max_nodes - count)
    assert drafted.order[0].tolist() == [1, 3, 2, 4, 5]
    assert drafted.probs[1] == pytest.approx([0.5, 0.4, 0.0, 0.0, 0.0])


def test_outcomes_follow_every_row():
    drafted = read(ConfidenceTable(), WIDE, CHAIN)
    tried, right, chains = drafted.outcomes([[1, 3, 7], [2]])
    assert tried == [1, 2, 3, 5, 4, 7]
    assert right == [1, 3]
    assert chains == [[1, 3, 4], [7, 8]]
    assert drafted.outcomes([[], [1]])[:2] == ([7], [7])


def test_confidences_that_are_too_high_are_corrected_within_few_steps():
    """The drafter is sure of everything and always wrong; nothing is known of the cells of its second level."""
    table = ConfidenceTable()
    for _ in range(6):
        drafted = read(table, *[HostTree([9, 1, 2], [-1, 0, 0], [1.0, 0.9, 0.05])] * 4)
        table.update(drafted, *drafted.outcomes([[5]] * 4)[:2])
    assert read(table, HostTree([9, 1, 2], [-1, 0, 1], [1.0, 0.8, 0.7])).path_probs[0, 2] < 0.1


def test_confidences_that_are_right_stay():
    table, rng = ConfidenceTable(), np.random.default_rng(0)
    for _ in range(100):
        drafted = read(table, *[HostTree([9, 1, 2], [-1, 0, 0], [1.0, 0.6, 0.2])] * 4)
        emitted = rng.choice([1, 2, 5], size=(4, 1), p=[0.6, 0.2, 0.2]).tolist()
        table.update(drafted, *drafted.outcomes(emitted)[:2])
    found = read(table, HostTree([9, 1, 2], [-1, 0, 0], [1.0, 0.6, 0.2])).path_probs[0, 1:]
    assert found == pytest.approx([0.6, 0.2], abs=0.1)
