"""Estimates from one drafted tree: for its nodes, and for smaller and larger trees."""

from types import SimpleNamespace

import numpy as np
import pytest

from treespec.policies.control.acceptance import Acceptance
from treespec.tree import HostTree, TreeBatch

TREE = HostTree([9, 1, 2, 3], [-1, 0, 0, 1], [1.0, 0.5, 0.3, 0.25])
WIDE = HostTree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 3, 1], [1.0, 0.6, 0.3, 0.48, 0.12, 0.06])


SIZES = [0, 3, 7, 15]
"""Nodes below the root of plain decoding and of three trees."""


def learn(acceptance, trees, emitted, asked=3):
    drafted = acceptance.read(TreeBatch.from_host_trees(trees) if isinstance(trees, list) else trees)
    acceptance.add(drafted, asked)
    acceptance.update(drafted, emitted)


def shown(asked, trees, emitted):
    """Expected acceptance of the candidates, and their nodes, after many steps like this one."""
    acceptance = Acceptance(SIZES[-1])
    for _ in range(300):
        learn(acceptance, trees, emitted, asked)
    return [[found[size] for size in SIZES] for found in (acceptance.expected, acceptance.num_nodes)]


def test_a_tree_shows_smaller_trees_and_a_little_of_larger_ones():
    plain, four, eight, sixteen = shown(3, [TREE], [[1, 3, 7]])[0]
    assert plain == 0.0
    assert four == pytest.approx(2.0, abs=0.15)
    assert four < eight < sixteen
    plain, four, eight, sixteen = shown(7, [WIDE], [[1, 3, 4, 7]])[0]
    assert four == pytest.approx(2.5, abs=0.6)
    assert four < eight == pytest.approx(sixteen, rel=1e-3), (
        "the tree of 8 had only five nodes, so a larger one has no more"
    )


def test_trees_that_are_not_full_say_how_many_nodes_there_will_be():
    assert shown(3, [TREE], [[1]])[1] == pytest.approx(SIZES, abs=0.05)
    assert shown(7, [WIDE], [[1]])[1] == pytest.approx([0, 3, 5, 5], abs=0.05)


def test_children_whose_fate_is_unknown_do_not_count():
    """The text ends at node 1 of the first tree, so its children may have been right."""
    acceptance = Acceptance(SIZES[-1])
    for _ in range(200):
        learn(acceptance, [WIDE], [[1]])
    (found,) = acceptance.read(TreeBatch.from_host_trees([WIDE]))
    assert found.probs[1] > 0.85
    assert found.probs[3] / found.probs[1] == pytest.approx(0.8, abs=0.01)
    assert found.probs[2] < 0.1


@pytest.mark.parametrize(("is_drawn", "one", "third"), [(True, 0.4, 0.25 * 2 / 3), (False, 0.45, 0.2 * 2 / 3)])
def test_a_smaller_tree_has_the_first_draws_not_the_best_outcomes(is_drawn, one, third):
    """A draw's outcome says nothing of the draws of a smaller or larger tree."""
    rng, acceptance, found = np.random.default_rng(0), Acceptance(3), []
    for _ in range(4000):
        first, later = rng.choice([0.2, 0.6]), rng.choice([0.1, 0.4])
        tree = HostTree([0, 1, 2], [-1, 0, 0], [1.0, first, later])
        batch = SimpleNamespace(host_trees=lambda tree=tree: [tree], draft_probs=[] if is_drawn else None)
        right = int(rng.choice(3, p=[first, later, 1 - first - later])) + 1
        learn(acceptance, batch, [[right, 9] if right < 3 else [right]], asked=2)
        found.append(acceptance.expected)
    none, smaller, whole, larger = np.mean(found[1000:], 0)
    assert none == 0.0
    assert smaller == pytest.approx(one, abs=0.015)
    assert whole == pytest.approx(0.65, abs=0.02)
    assert larger - whole == pytest.approx(third, abs=0.02)
