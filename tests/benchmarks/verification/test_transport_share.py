"""The benchmark's exact means and its linear programme, against enumeration by the rules themselves."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verification import transport_share
from benchmarks.verification.transport_share import mean_accepted, random_toy, whole_tree_optimum
from treespec.testing import FixedShape, ToyDrafter, exact_distribution
from treespec.tree import IID, WITHOUT_REPLACEMENT
from treespec.verification import RULES

CASES = [(name, scheme) for name in transport_share.RULES for scheme in (IID, WITHOUT_REPLACEMENT)]
CASES.remove(("k_seq", WITHOUT_REPLACEMENT))


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_the_means_are_those_of_the_rules(name, scheme):
    target, draft = random_toy(np.random.default_rng(3), is_correlated=True)

    def probs_of(probs):
        # Below the tree the distributions do not matter for acceptance.
        return lambda context: np.array(probs.get(context, [1.0, 0.0, 0.0]))

    drafter = ToyDrafter(scheme, FixedShape.kary(2, 2), (probs_of(draft),))
    mean = transport_share.RULES[name](scheme == WITHOUT_REPLACEMENT, target, draft)
    tolerance = 1e-6 if name == "k_seq" else 1e-10  # K-SEQ's ratio is bisected more finely here.
    assert mean == pytest.approx(
        exact_distribution(RULES[name], drafter, probs_of(target)).mean_accepted, abs=tolerance
    )


@pytest.mark.parametrize("is_without", [False, True])
def test_no_rule_is_above_the_programme(is_without):
    for seed in range(10):
        target, draft = random_toy(np.random.default_rng(seed), is_correlated=bool(seed % 2))
        optimum = whole_tree_optimum(is_without, target, draft)
        for name, accepted in transport_share.RULES.items():
            if name != "k_seq" or not is_without:
                assert accepted(is_without, target, draft) <= optimum + 1e-8
        traversal = mean_accepted(transport_share.accept_in_turn, True, is_without, target, draft)
        recursive = mean_accepted(transport_share.accept_in_turn, False, is_without, target, draft)
        assert traversal >= recursive - 1e-12
