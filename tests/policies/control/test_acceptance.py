"""What one drafted tree says of its nodes, and of smaller, larger and shallower trees."""

import numpy as np
import pytest

from treespec.policies.control.acceptance import Acceptance
from treespec.policies.control.candidates import Candidates
from treespec.tree import HostTree, TreeBatch

TREE = HostTree([9, 1, 2, 3], [-1, 0, 0, 1], [1.0, 0.5, 0.3, 0.25])
WIDE = HostTree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 3, 1], [1.0, 0.6, 0.3, 0.48, 0.12, 0.06])
CHAIN = HostTree([9, 1, 2], [-1, 0, 1], [1.0, 0.5, 0.4])


def names(candidates):
    return [candidate.name for candidate in candidates]


def learn(acceptance, trees, emitted, chosen=0):
    batch = TreeBatch.from_host_trees(trees)
    drafted = acceptance.read(batch)
    acceptance.add(drafted, chosen, 2)
    acceptance.update(drafted, batch.num_nodes.tolist(), emitted)


def shown(candidates, chosen, emitted, steps=300):
    """What candidates are expected to accept after many steps like this one."""
    acceptance = Acceptance(candidates)
    for _ in range(steps):
        learn(acceptance, [TREE], [emitted], names(candidates).index(chosen))
    return dict(zip(names(candidates), acceptance.expected[0], strict=True))


def test_a_tree_shows_smaller_trees_chains_and_a_little_of_larger_ones():
    found = shown(Candidates(16), "tree of 4", [1, 3, 7])
    assert found["chain of 1"] == pytest.approx(1.0, abs=0.1)
    assert found["chain of 2"] == pytest.approx(2.0, abs=0.15)
    assert found["tree of 4"] == pytest.approx(2.0, abs=0.15)
    assert found["tree of 4"] < found["tree of 8"] < found["tree of 16"]


def test_a_deep_tree_shows_shallow_ones_and_a_chain_no_trees():
    candidates = Candidates(16, is_sampled=True)
    found = shown(candidates, "tree of 4", [1, 3, 7])
    assert found["tree of 4, depth 2"] == pytest.approx(found["tree of 4"], abs=0.1)
    acceptance = Acceptance(candidates)
    before = acceptance.expected[0]
    acceptance.add(acceptance.read(TreeBatch.from_host_trees([CHAIN])), names(candidates).index("chain of 2"), 2)
    changed = [name for name, change in zip(names(candidates), acceptance.expected[0] != before, strict=True) if change]
    assert {name.split()[0] for name in changed} == {"chain"}


def test_depths_order_and_probabilities_are_those_of_the_trees():
    batch = TreeBatch.from_host_trees([WIDE, CHAIN])
    for drafted, tree, given in zip(Acceptance(Candidates(8)).read(batch), batch.trees, (WIDE, CHAIN), strict=True):
        assert drafted.depths == tree.depths
        assert drafted.probs == pytest.approx(given.values)
        assert sorted(drafted.order) == list(range(1, tree.num_nodes))
        falling = [drafted.probs[node] for node in drafted.order]
        assert falling == sorted(falling, reverse=True)
    wide, chain = Acceptance(Candidates(8)).read(batch)
    assert wide.order == [1, 3, 2, 4, 5]
    assert (wide.chain, chain.chain) == ([1, 3, 4], [1, 2])


def test_confidences_that_are_too_high_are_corrected_within_few_steps():
    """The drafter is sure of everything and always wrong, and soon nothing is expected of it."""
    candidates = Candidates(4)
    acceptance = Acceptance(candidates)
    for _ in range(12):
        learn(acceptance, [HostTree([9, 1, 2], [-1, 0, 0], [1.0, 0.9, 0.05])] * 4, [[5]] * 4, len(candidates) - 1)
    assert acceptance.expected[0, -1] < 0.3


def test_confidences_that_are_right_stay():
    acceptance, rng = Acceptance(Candidates(4)), np.random.default_rng(0)
    tree = HostTree([9, 1, 2], [-1, 0, 0], [1.0, 0.6, 0.2])
    for _ in range(100):
        learn(acceptance, [tree] * 4, rng.choice([1, 2, 5], size=(4, 1), p=[0.6, 0.2, 0.2]).tolist())
    (found,) = acceptance.read(TreeBatch.from_host_trees([tree]))
    assert found.probs[1:] == pytest.approx([0.6, 0.2], abs=0.1)


def test_children_whose_fate_is_unknown_do_not_count():
    """The text ends at node 1 of the first tree, so its children may have been right."""
    acceptance = Acceptance(Candidates(8))
    for _ in range(200):
        learn(acceptance, [WIDE], [[1]])
    (found,) = acceptance.read(TreeBatch.from_host_trees([WIDE]))
    assert found.probs[1] > 0.85
    assert found.probs[3] / found.probs[1] == pytest.approx(0.8, abs=0.01)
    assert found.probs[2] < 0.1
