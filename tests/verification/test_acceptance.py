"""How much the lossless rules accept: orderings and optima, by exact expectation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers.toys import drafted_batch, mean_accepted_by_rejection, mean_accepted_by_traversal

from treespec.testing import (
    IID,
    MIXED,
    SELECTED,
    SEVERAL_DRAFTERS,
    WITHOUT_REPLACEMENT,
    AdaptiveWidth,
    ConditionalProbs,
    Context,
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    exact_distribution,
)
from treespec.verification import RULES
from treespec.verification.dense.scans import scan_rejection, scan_traversal

# Sampling scheme, vocabulary size and branching: 1,000 pairs (`make test-all`) are spread over these.
CONFIGURATIONS = [
    (IID, 3, (2, 1)),
    (IID, 2, (2, 2)),
    (IID, 3, (1, 2)),
    (WITHOUT_REPLACEMENT, 3, (2, 1)),
    (WITHOUT_REPLACEMENT, 3, (2, 2)),
    (MIXED, 3, (2, 2)),
    (MIXED, 4, (3, 2)),
    (MIXED, 3, (1, 2)),
    (SEVERAL_DRAFTERS, 3, (2, 1)),
    (SEVERAL_DRAFTERS, 2, (2, 2)),
]


@pytest.mark.parametrize("num_pairs", [25, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("scheme", "vocab_size", "branching"), CONFIGURATIONS)
def test_traversal_is_never_below_recursive_rejection(
    scheme: str, vocab_size: int, branching: tuple[int, ...], num_pairs: int, record_property
) -> None:
    """On trees of a fixed shape. Where the growth looks at drawn tokens the order may be the other way round."""
    gains = np.array([gain(scheme, vocab_size, branching, seed) for seed in range(num_pairs)])
    assert gains.min() > -1e-12
    assert gains.max() > 0.01 or scheme == MIXED
    least = round(gains.min(), 4) + 0.0  # Never "-0.0000".
    record_property(
        "table",
        f"traversal / recursive rejection - 1, {scheme} {branching} V={vocab_size}, {num_pairs} pairs: "
        f"least {least:.4f}, mean {gains.mean():.4f}, most {gains.max():.4f}",
    )


def gain(scheme: str, vocab_size: int, branching: tuple[int, ...], seed: int) -> float:
    zero_share = 0.3 * (seed % 2)
    target, *drafts = (RandomDistributions(vocab_size, 3 * seed + i, zero_share=zero_share) for i in range(3))
    drafter = ToyDrafter(scheme, FixedShape.kary(*branching), tuple(drafts))
    weights, trees, target_probs = drafted_batch(drafter, target)
    means = []
    for scan, mean_accepted in (
        (scan_rejection(trees, target_probs), mean_accepted_by_rejection),
        (scan_traversal(trees, target_probs), mean_accepted_by_traversal),
    ):
        means.append(float(weights @ mean_accepted(scan, trees)))
    return means[1] / means[0] - 1 if means[0] > 0 else 0.0


@pytest.mark.parametrize(("scheme", "vocab_size", "branching"), CONFIGURATIONS[:2] + CONFIGURATIONS[4:7])
def test_closed_expectation_equals_enumeration(scheme: str, vocab_size: int, branching: tuple[int, ...]) -> None:
    target, *drafts = (RandomDistributions(vocab_size, seed) for seed in (1, 2, 3))
    drafter = ToyDrafter(scheme, FixedShape.kary(*branching), tuple(drafts))
    weights, trees, target_probs = drafted_batch(drafter, target)
    by_rejection = weights @ mean_accepted_by_rejection(scan_rejection(trees, target_probs), trees)
    by_traversal = weights @ mean_accepted_by_traversal(scan_traversal(trees, target_probs), trees)
    assert float(by_rejection) == pytest.approx(
        exact_distribution(RULES["recursive"], drafter, target).mean_accepted, abs=1e-12
    )
    assert float(by_traversal) == pytest.approx(
        exact_distribution(RULES["traversal"], drafter, target).mean_accepted, abs=1e-12
    )


def test_traversal_may_be_below_recursive_rejection_on_adaptive_trees() -> None:
    """Recorded as a fact about the rule: both stay lossless there."""
    gains = []
    for seed in range(40):
        target, draft = RandomDistributions(3, 2 * seed), RandomDistributions(3, 2 * seed + 1)
        drafter = ToyDrafter(MIXED, AdaptiveWidth(), (draft,))
        accepted = [
            exact_distribution(RULES[name], drafter, target).mean_accepted for name in ("recursive", "traversal")
        ]
        gains.append(accepted[1] / accepted[0] - 1)
    assert -0.05 < min(gains) < -1e-3


@pytest.mark.parametrize("length", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_block_verification_attains_the_chain_optimum(length: int) -> None:
    for seed in range(40):
        zero_share = 0.3 * (seed % 2)
        target, draft = (RandomDistributions(3, 2 * seed + i, is_exact=True, zero_share=zero_share) for i in range(2))
        drafter = ToyDrafter(IID, FixedShape.kary(*[1] * length), (draft,))
        best = chain_optimum(target, draft, (), Fraction(1), Fraction(1), length)
        assert exact_distribution(RULES["block"], drafter, target).mean_accepted == best
        assert exact_distribution(RULES["traversal"], drafter, target).mean_accepted == best
        assert exact_distribution(RULES["token"], drafter, target).mean_accepted <= best


def chain_optimum(
    target: ConditionalProbs, draft: ConditionalProbs, context: Context, kept: Fraction, drawn: Fraction, length: int
) -> Fraction:
    """Sum over prefixes of `U(s x) = min(P(x|s) U(s), Q(s x))`: the bound on every lossless rule (Sun et al. 2025)."""
    if length == 0:
        return Fraction(0)
    total = Fraction(0)
    for token, (target_prob, draft_prob) in enumerate(zip(target(context), draft(context), strict=True)):
        both = min(target_prob * kept, draft_prob * drawn)
        total += both + chain_optimum(target, draft, (*context, token), both, draft_prob * drawn, length - 1)
    return total


@pytest.mark.parametrize("name", ["target_walk", "recursive", "traversal"])
def test_selected_trees_are_accepted_with_the_mass_of_their_paths(name: str) -> None:
    """On deterministic trees no lossless rule accepts more than the sum of the target's path probabilities."""
    for seed in range(20):
        target, draft = (RandomDistributions(3, 2 * seed + i, is_exact=True) for i in range(2))
        drafter = ToyDrafter(SELECTED, FixedShape.from_paths("[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]"), (draft,))
        _, trees, target_probs = drafted_batch(drafter, target)
        (tree,) = trees.trees
        probs = torch.ones(tree.num_nodes, dtype=torch.float64)
        for node in range(1, tree.num_nodes):
            parent = tree.parent_list[node]
            probs[node] = probs[parent] * target_probs[0, parent, tree.token(node)]
        accepted = exact_distribution(RULES[name], drafter, target).mean_accepted
        assert float(accepted) == pytest.approx(float(probs[1:].sum()), abs=1e-12)
