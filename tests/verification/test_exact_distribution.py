"""Every lossless rule on every scheme that it supports, by its exact output distribution."""

from __future__ import annotations

import pytest

from treespec.testing import (
    SHAPES,
    TOY_SCHEMES,
    WITHOUT_REPLACEMENT,
    Case,
    RandomDistributions,
    ToyDrafter,
    assert_lossless,
    distribution_pairs,
    enumerate_traces,
    toy_case,
)
from treespec.tree import TreeBatch
from treespec.verification import RULES

RULE_NAMES = ("token", "block", "recursive", "target_walk", "traversal")
EDGES = tuple(distribution_pairs(2, False))
THREE_CHAIN_EDGES = ("generic", *(pytest.param(edge, marks=pytest.mark.slow) for edge in ("equal", "one-hot target")))


LARGE_TREES = ("2x2", "3-1-1", "unbalanced")
"""In Fractions these take up to half a minute per sampling scheme, in float64 a tenth of it: that is the quick one."""


@pytest.mark.parametrize(
    ("shape", "is_exact"),
    [
        pytest.param(
            shape,
            is_exact,
            id=f"{shape}-{'fraction' if is_exact else 'float64'}",
            marks=[pytest.mark.slow] if is_exact == (shape in LARGE_TREES) else [],
        )
        for shape in SHAPES
        for is_exact in (False, True)
    ],
)
@pytest.mark.parametrize("scheme", TOY_SCHEMES)
def test_lossless(scheme: str, shape: str, is_exact: bool, record_property) -> None:
    for edge in EDGES:
        drafter, target = toy_case(Case(scheme, shape, edge), is_exact)
        for name in supporting(drafter):
            assert_lossless(RULES[name], drafter, target)
            record_property("exact_case", (name, scheme, shape, edge, is_exact))


@pytest.mark.parametrize("edge", THREE_CHAIN_EDGES)
@pytest.mark.parametrize("name", ["recursive", "target_walk", "traversal"])
def test_three_chains_without_replacement(name: str, edge: str, record_property) -> None:
    """All three siblings drawn: thousands of trees, so in float64 only; Fractions have two tokens in the grid."""
    target, drafts = distribution_pairs(3, False)[edge]
    assert_lossless(RULES[name], ToyDrafter(WITHOUT_REPLACEMENT, SHAPES["3-1-1"], drafts), target)
    record_property("exact_case", (name, WITHOUT_REPLACEMENT, "3-1-1", f"{edge}, 3 tokens", False))


@pytest.mark.parametrize("name", ["recursive", "target_walk", "traversal"])
def test_three_siblings_without_replacement_in_rational_arithmetic(name: str, record_property) -> None:
    """Generic siblings, below them chains of a point draft: three tokens at a hundredth of the trees."""
    target, drafts = distribution_pairs(3, True)["generic"]
    point = distribution_pairs(3, True)["one-hot draft"][1][0]
    drafter = ToyDrafter(
        WITHOUT_REPLACEMENT, SHAPES["3-1-1"], (lambda context: (point if context else drafts[0])(context),)
    )
    assert assert_lossless(RULES[name], drafter, target).error == 0
    record_property("exact_case", (name, WITHOUT_REPLACEMENT, "3-1-1", "generic siblings, 3 tokens", True))


@pytest.mark.parametrize("is_exact", [False, True], ids=["float64", "fraction"])
@pytest.mark.parametrize("scheme", TOY_SCHEMES)
def test_a_vocabulary_of_one(scheme: str, is_exact: bool, record_property) -> None:
    probs = RandomDistributions(1, seed=0, is_exact=is_exact)
    for shape in SHAPES:
        drafter = ToyDrafter(scheme, SHAPES[shape], (probs, probs))
        for name in supporting(drafter):
            result = assert_lossless(RULES[name], drafter, probs)
            assert result.mean_accepted == max(len(c) for _, tree in enumerate_traces(drafter) for c in tree.contexts)
            record_property("exact_case", (name, scheme, shape, "vocabulary of one", is_exact))


@pytest.mark.parametrize("seed", [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 9))])
def test_more_distributions(seed: int, record_property) -> None:
    for scheme in TOY_SCHEMES:
        for shape in ("chain", "unbalanced", "adaptive depth", "adaptive width"):
            target, drafts = distribution_pairs(3, True, seed)["zeros"]
            drafter = ToyDrafter(scheme, SHAPES[shape], drafts)
            for name in supporting(drafter):
                assert_lossless(RULES[name], drafter, target)
                record_property("exact_case", (name, scheme, shape, f"zeros {seed}", True))


def supporting(drafter: ToyDrafter) -> list[str]:
    """The rules that support the largest tree that the drafter draws; chain rules must support chains only."""
    tree = max((tree for _, tree in enumerate_traces(drafter)), key=lambda tree: tree.num_nodes).to_token_tree()
    trees = TreeBatch.from_trees([tree])
    names = [name for name in RULE_NAMES if RULES[name].reason_against(trees) is None]
    assert set(names) >= {"recursive", "target_walk", "traversal"}
    assert ({"token", "block"} <= set(names)) == all(len(group) <= 1 for group in tree.children_lists)
    return names
