"""Every lossless rule on every scheme that it supports, by its exact output distribution."""

from itertools import product
from typing import Any

import pytest

from treespec.literature import KSeq
from treespec.testing import (
    IID,
    SHAPES,
    TOY_SCHEMES,
    WITHOUT_REPLACEMENT,
    Case,
    ConditionalProbs,
    RandomDistributions,
    ToyDrafter,
    assert_lossless,
    distribution_pairs,
    enumerate_traces,
    toy_case,
)
from treespec.tree import TreeBatch
from treespec.verification import RULES

# Every registered lossless rule is proved; those named here take every tree.
TREE_RULES = {"recursive", "target_walk", "traversal"}
EDGES = tuple(distribution_pairs(2))
LARGE_TREES = ("2x2", "3-1-1", "unbalanced")
"""In Fractions these take up to half a minute per sampling scheme, in float64 a tenth of it: that is the quick one."""


def proofs() -> list[Any]:
    """Every scheme and shape in Fractions; in float64 too where Fractions are slow."""
    cases = []
    for shape, scheme in product(SHAPES, TOY_SCHEMES):
        is_large = shape in LARGE_TREES or (shape, scheme) == ("adaptive depth", IID)
        marks = [pytest.mark.slow] if is_large else []
        cases.append(pytest.param(scheme, shape, True, id=f"{scheme}-{shape}-fraction", marks=marks))
        if is_large:
            cases.append(pytest.param(scheme, shape, False, id=f"{scheme}-{shape}-float64"))
    return cases


def prove(drafter: ToyDrafter, target: ConditionalProbs) -> dict[str, object]:
    """Asserts that every rule is lossless that supports the largest tree of a drafter; by rule the accepted tokens."""
    drafted = list(enumerate_traces(drafter))
    tree = max((tree for _, tree in drafted), key=lambda tree: tree.num_nodes).to_token_tree()
    trees, is_exact = TreeBatch.from_trees([tree]), target(()).dtype == object
    names = [name for name, rule in RULES.items() if rule.is_lossless and rule.reason_against(trees) is None]
    assert set(names) >= TREE_RULES
    assert ({"token", "block"} <= set(names)) == all(len(group) <= 1 for group in tree.children_lists)
    rules = dict(RULES.items()) | ({"k_seq": KSeq(1)} if is_exact else {})  # Fractions grow with every bisection.
    return {name: assert_lossless(rules[name], drafted, target).mean_accepted for name in names}


@pytest.mark.parametrize(("scheme", "shape", "is_exact"), proofs())
def test_lossless(scheme: str, shape: str, is_exact: bool) -> None:
    for edge in EDGES:
        prove(*toy_case(Case(scheme, shape, edge), is_exact))


@pytest.mark.parametrize("scheme", TOY_SCHEMES)
def test_a_vocabulary_of_one(scheme: str) -> None:
    probs = RandomDistributions(1, seed=0, is_exact=True)
    for shape in SHAPES:
        drafter = ToyDrafter(scheme, SHAPES[shape], (probs, probs))
        depth = max(len(c) for _, tree in enumerate_traces(drafter) for c in tree.contexts)
        accepted = prove(drafter, probs)
        assert {accepted[name] for name in TREE_RULES} == {depth}


@pytest.mark.parametrize("scheme", TOY_SCHEMES)
def test_more_distributions(scheme: str) -> None:
    for shape in ("chain", "unbalanced", "adaptive depth", "adaptive width"):
        target, drafts = distribution_pairs(3 if scheme != IID or shape != "unbalanced" else 2, True, 1)["zeros"]
        prove(ToyDrafter(scheme, SHAPES[shape], drafts), target)


def test_three_siblings_without_replacement_in_rational_arithmetic() -> None:
    """Generic siblings, below them chains of a point draft: three tokens at a hundredth of the trees."""
    target, drafts = distribution_pairs(3, True)["generic"]
    point = distribution_pairs(3, True)["one-hot draft"][1][0]
    draft = (lambda context: (point if context else drafts[0])(context),)
    prove(ToyDrafter(WITHOUT_REPLACEMENT, SHAPES["3-1-1"], draft), target)
