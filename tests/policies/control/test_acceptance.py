"""What one drafted tree says of smaller, larger, shallower and deeper ones."""

import numpy as np
import pytest

from treespec.policies.control.acceptance import Acceptance
from treespec.policies.control.candidates import Candidates
from treespec.tree import HostTree, TreeBatch

TREE = HostTree([9, 1, 2, 3], [-1, 0, 0, 1], [1.0, 0.5, 0.3, 0.25])
CURVE = np.linspace(30.0, 60.0, 65)


def shown(candidates, chosen, emitted, steps=200):
    """What candidates are expected to accept after many steps like this one."""
    acceptance, tree = Acceptance(candidates), TreeBatch.from_host_trees([TREE])
    for _ in range(steps):
        drafted = acceptance.read(tree)
        acceptance.update(drafted, [emitted], candidates.names.index(chosen), 2, CURVE, loss=0.0)
    return dict(zip(candidates.names, acceptance.expected()[0], strict=True))


def test_a_tree_shows_smaller_trees_chains_and_a_little_of_larger_ones():
    found = shown(Candidates(16), "tree of 4", [1, 3, 7])
    assert found["chain of 1"] == pytest.approx(1.0, abs=0.1)
    assert found["chain of 2"] == pytest.approx(2.0, abs=0.1)
    assert found["tree of 4"] == pytest.approx(2.0, abs=0.1)
    assert found["tree of 4"] < found["tree of 8"] < found["tree of 16"]


def test_a_shallow_tree_says_that_deeper_ones_gain_less_and_less():
    candidates = Candidates(16, is_sampled=True)
    found = shown(candidates, "tree of 8, depth 2", [1, 3, 7])
    by_depth = [found[f"tree of 8, depth {depth}"] for depth in (2, 3, 4, 6)] + [found["tree of 8"]]
    assert by_depth == sorted(by_depth)
    assert by_depth[0] == pytest.approx(2.0, abs=0.1)
    assert by_depth[1] == pytest.approx(2.7, abs=0.2)
