"""Every known mistake shifts the output distribution, and the exact oracle sees it."""

from functools import cache

import pytest
from helpers.mutants import DRAFTS, TARGET, BlockStopsAtFirstFailure, FreshSamplePerPath, bonus_from_parent, mistaken

from treespec.literature import KSeq, OptimalTransport, TransportTraversal
from treespec.testing import (
    IID,
    MIXED,
    SELECTED,
    SEVERAL_DRAFTERS,
    SHAPES,
    WITHOUT_REPLACEMENT,
    AdaptiveWidth,
    FixedShape,
    Shape,
    ToyDrafter,
    VerifyingRule,
    assert_lossless,
    exact_distribution,
)
from treespec.verification import RULES

CHAIN, PAIR, SQUARE = SHAPES["chain"], FixedShape.kary(2), FixedShape.kary(2, 2)
CHILDREN, PROBS = "in tree.children(node):", "tree.draft_probs_of(child)"
DISTINCT, SAMPLED = "in distinct(tree, node):", "draft(tree.contexts[node])"
LATER = "weights, scale = (rest / total, mass) if total < TINY else (rest, mass / total)"
MASS = f"mass = total / (total + (1 - mass))\n        {LATER}"
DRAFT_PROB = "tree.base_distributions[c][tree.token(c)]"
OF_TARGET = ("for child in", "whole = probs\n    for child in", "return None, probs", "return None, whole")
OF_PAIR = (
    "return [first, second], _less(weights, support, [sum(row) for row in accepted])",
    "return [first, second], _less(weights, [token for token in tokens], [first, second])",
)

# By mistake: the mutant; the sound rule's name, the scheme and the shape on which both are run.
MUTANTS: dict[str, tuple[VerifyingRule, str, str, Shape]] = {
    "correction drawn from the target, not the residual": (mistaken("recursive", *OF_TARGET), "recursive", IID, CHAIN),
    "bonus token drawn from the parent's residual": (bonus_from_parent(), "recursive", IID, SQUARE),
    "a fresh target sample for every path": (FreshSamplePerPath(), "target_walk", SELECTED, SQUARE),
    "block verification stopped at the first failure": (BlockStopsAtFirstFailure(), "block", IID, CHAIN),
} | {
    wrong: (mistaken(name, *changes), name, scheme, shape)
    for wrong, name, scheme, shape, *changes in [
        ("draws without replacement, distribution not renormalised", "recursive", WITHOUT_REPLACEMENT, SQUARE,
         PROBS, "tree.base_distributions[child]"),
        ("the same under traversal", "traversal", WITHOUT_REPLACEMENT, SQUARE, PROBS, "tree.base_distributions[child]"),
        ("independent draws, distribution renormalised", "recursive", IID, PAIR, PROBS, "without(tree, child)"),
        ("duplicate i.i.d. siblings removed", "recursive", IID, SQUARE, CHILDREN, DISTINCT),
        ("the same duplicates removed under traversal", "traversal", IID, SQUARE, CHILDREN, DISTINCT),
        ("duplicates removed under k_seq", "k_seq", IID, PAIR, "for child in children:", "for child " + DISTINCT),
        ("siblings re-sorted by draft probability", "recursive", WITHOUT_REPLACEMENT, SQUARE,
         CHILDREN, f"in sorted(tree.children(node), key=lambda c: -{DRAFT_PROB}):"),
        ("unlikely sampled siblings pruned", "recursive", IID, SQUARE,
         CHILDREN, f"in [c for c in tree.children(node) if {DRAFT_PROB} * 10 >= 3]:"),
        ("top-k children treated as sampled", "recursive", SELECTED, SQUARE, PROBS, SAMPLED),
        ("several drafters read as one", "recursive", SEVERAL_DRAFTERS, PAIR, PROBS, SAMPLED),
        ("mixed: sample treated as drawn from the whole distribution", "recursive", MIXED, SQUARE,
         PROBS, f"None if tree.draft_probs[child] is None else {SAMPLED}"),
        ("block verification with a token-wise residual", "traversal", IID, CHAIN,
         MASS, "scale = mass = total / (total + (1 - mass)); weights = residual_weights(weights, draft_probs, token)"),
        ("target walk with duplicate siblings counted twice", "target_walk", IID, SQUARE, "target_probs(node)",
         "target_probs(node) * np.bincount([tree.token(c) for c in tree.children(node)], minlength=3).clip(1)"),
        ("traversal that keeps the mass after a rejection", "traversal", IID, SQUARE,
         MASS, LATER),
        ("traversal that leaves the mass unnormalised", "traversal", IID, SQUARE,
         MASS, "mass, weights, scale = total, rest, 1"),
        ("k_seq with a ratio below the least", "k_seq", IID, PAIR,
         "tightening(probs, draft_probs, len(children), self.num_bisections)", "probs.sum()"),
        ("a rest that depends on the pair", "optimal_transport", IID, PAIR, *OF_PAIR),
        ("the same under traversal from pairs", "transport_traversal", IID, PAIR, *OF_PAIR),
    ]
}  # fmt: skip


def shift(rule: VerifyingRule, scheme: str, shape: Shape) -> float:
    return float(exact_distribution(rule, ToyDrafter(scheme, shape, tuple(DRAFTS)), TARGET).total_variation)


@pytest.mark.parametrize("wrong", MUTANTS)
def test_a_mutant_is_caught_and_the_sound_rule_is_not(wrong: str) -> None:
    mutant, name, scheme, shape = MUTANTS[wrong]
    assert shift(mutant, scheme, shape) > 1e-4
    sound_rule_is_lossless(name, scheme, shape)


@cache
def sound_rule_is_lossless(name: str, scheme: str, shape: Shape) -> None:
    """Several mutants are of one rule, on the same trees."""
    assert_lossless(RULES[name], ToyDrafter(scheme, shape, tuple(DRAFTS)), TARGET)


@pytest.mark.parametrize(
    ("rule", "scheme", "shape"),
    [
        *((rule, IID, AdaptiveWidth(2, 1)) for rule in (KSeq(), OptimalTransport(), TransportTraversal())),
        (KSeq(), WITHOUT_REPLACEMENT, PAIR),
    ],
)
def test_what_a_rule_requires_it_needs(rule: VerifyingRule, scheme: str, shape: Shape) -> None:
    """Forced on trees that it refuses: widths that depend on draws, another sampling scheme."""
    assert shift(rule, scheme, shape) > 1 / 200
