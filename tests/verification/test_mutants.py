"""Every known mistake shifts the output distribution, and the exact oracle sees by how much."""

from __future__ import annotations

import pytest
from helpers.mutants import (
    BonusFromParent,
    CorrectionFromTarget,
    DuplicatesCountedTwice,
    FreshSamplePerPath,
    Misread,
    MistakenBlock,
    MistakenTraversal,
    as_if_sampled,
    sorted_by_probs,
    whole_probs,
    with_selected_kept,
    without_duplicates,
    without_siblings,
    without_unlikely,
)

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.testing import (
    IID,
    MIXED,
    SELECTED,
    SEVERAL_DRAFTERS,
    SHAPES,
    WITHOUT_REPLACEMENT,
    FixedShape,
    RandomDistributions,
    Shape,
    ToyDrafter,
    VerifyingRule,
    assert_lossless,
    exact_distribution,
)
from treespec.tree import Verdict
from treespec.verification import RULES

TARGET = RandomDistributions(3, seed=13, is_exact=True)
DRAFTS = (RandomDistributions(3, seed=113, is_exact=True), RandomDistributions(3, seed=213, is_exact=True))
CHAIN, PAIR, SQUARE = SHAPES["chain"], FixedShape.kary(2), FixedShape.kary(2, 2)
RECURSIVE, TRAVERSAL, WALK, BLOCK = RULES["recursive"], RULES["traversal"], RULES["target_walk"], RULES["block"]

# Name, the mutant, the sound rule, the scheme and the shape on which both are run.
MUTANTS: dict[str, tuple[VerifyingRule, VerifyingRule, str, Shape]] = {
    "correction drawn from the target instead of the residual": (CorrectionFromTarget(), RECURSIVE, IID, CHAIN),
    "draws without replacement, distribution not renormalised": (
        Misread(RECURSIVE, whole_probs),
        RECURSIVE,
        WITHOUT_REPLACEMENT,
        SQUARE,
    ),
    "the same under traversal": (Misread(TRAVERSAL, whole_probs), TRAVERSAL, WITHOUT_REPLACEMENT, SQUARE),
    "independent draws, distribution renormalised": (Misread(RECURSIVE, without_siblings), RECURSIVE, IID, PAIR),
    "duplicate i.i.d. siblings removed": (Misread(RECURSIVE, without_duplicates), RECURSIVE, IID, SQUARE),
    "the same duplicates removed under traversal": (Misread(TRAVERSAL, without_duplicates), TRAVERSAL, IID, SQUARE),
    "siblings re-sorted by draft probability": (
        Misread(RECURSIVE, sorted_by_probs),
        RECURSIVE,
        WITHOUT_REPLACEMENT,
        SQUARE,
    ),
    "unlikely sampled siblings pruned": (Misread(RECURSIVE, without_unlikely), RECURSIVE, IID, SQUARE),
    "block verification with a token-wise residual": (
        MistakenBlock(has_token_wise_residual=True),
        BLOCK,
        IID,
        CHAIN,
    ),
    "block verification stopped at the first failure": (MistakenBlock(stops_at_first_failure=True), BLOCK, IID, CHAIN),
    "target walk with duplicate siblings counted twice": (DuplicatesCountedTwice(), WALK, IID, SQUARE),
    "a fresh target sample for every path": (FreshSamplePerPath(), WALK, SELECTED, SQUARE),
    "bonus token drawn from the parent's residual": (BonusFromParent(), RECURSIVE, IID, SQUARE),
    "top-k children treated as sampled": (Misread(RECURSIVE, as_if_sampled(DRAFTS[0])), RECURSIVE, SELECTED, SQUARE),
    "mixed: sample treated as drawn from the whole distribution": (
        Misread(RECURSIVE, with_selected_kept(DRAFTS[0])),
        RECURSIVE,
        MIXED,
        SQUARE,
    ),
    "several drafters read as one": (
        Misread(RECURSIVE, as_if_sampled(DRAFTS[0])),
        RECURSIVE,
        SEVERAL_DRAFTERS,
        PAIR,
    ),
    "traversal that keeps the mass after a rejection": (MistakenTraversal(keeps_mass=True), TRAVERSAL, IID, SQUARE),
    "traversal that leaves the mass unnormalised": (MistakenTraversal(skips_normalising=True), TRAVERSAL, IID, SQUARE),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, record_property) -> None:
    mutant, _, scheme, shape = MUTANTS[name]
    shift = exact_distribution(mutant, ToyDrafter(scheme, shape, DRAFTS), TARGET).total_variation
    record_property("table", f"mutant: {name:<58} total variation {float(shift):.6f}")
    assert shift > 0


@pytest.mark.parametrize(("sound", "scheme", "shape"), dict.fromkeys(case[1:] for case in MUTANTS.values()))
def test_the_sound_rule_is_not(sound: VerifyingRule, scheme: str, shape: Shape) -> None:
    assert_lossless(sound, ToyDrafter(scheme, shape, DRAFTS), TARGET)


def test_the_assertion_says_how_far_a_mutant_is_off() -> None:
    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless(CorrectionFromTarget(), ToyDrafter(IID, CHAIN, DRAFTS), TARGET)


class OneCoinForAll:
    """A rule that verifies siblings by one coin."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        for child in tree.children(0):
            if rng.flip(0, target_probs(0)[tree.token(child)]):
                return Verdict((0, child), rng.pick(child, target_probs(child)), True)
        return Verdict((0,), rng.pick(0, target_probs(0)), False)


def test_a_coin_used_twice_is_caught() -> None:
    with pytest.raises(AssertionError, match="used twice"):
        exact_distribution(OneCoinForAll(), ToyDrafter(SELECTED, PAIR, DRAFTS), TARGET)
