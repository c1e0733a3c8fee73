"""How much the lossless rules accept: orderings and optima, by exact expectation."""

from fractions import Fraction
from math import prod

import pytest

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
    enumerate_traces,
    exact_distribution,
)
from treespec.verification import RULES

CONFIGURATIONS = [
    (IID, 2, (2, 2)),
    (IID, 3, (1, 2)),
    (WITHOUT_REPLACEMENT, 3, (2, 1)),
    (MIXED, 3, (2, 2)),
    (SEVERAL_DRAFTERS, 2, (2, 2)),
]


@pytest.mark.parametrize(("scheme", "vocab_size", "branching"), CONFIGURATIONS)
def test_traversal_is_never_below_recursive_rejection(scheme: str, vocab_size: int, branching: tuple[int, ...]) -> None:
    """On trees of a fixed shape. Where the growth looks at drawn tokens the order may be the other way round."""
    for seed in range(4):
        target, *drafts = (RandomDistributions(vocab_size, 3 * seed + i, zero_share=0.3 * (seed % 2)) for i in range(3))
        gain = gain_of_traversal(ToyDrafter(scheme, FixedShape.kary(*branching), tuple(drafts)), target)
        assert gain > -1e-12


def gain_of_traversal(drafter: ToyDrafter, target: ConditionalProbs) -> float:
    means = [exact_distribution(RULES[name], drafter, target).mean_accepted for name in ("recursive", "traversal")]
    return means[1] / means[0] - 1 if means[0] > 0 else 0.0


def test_traversal_may_be_below_recursive_rejection_on_adaptive_trees() -> None:
    """Recorded as a fact about the rule: both stay lossless there."""
    pairs = [tuple(RandomDistributions(3, 2 * seed + i) for i in range(2)) for seed in range(40)]
    gains = [gain_of_traversal(ToyDrafter(MIXED, AdaptiveWidth(), (draft,)), target) for target, draft in pairs]
    assert -0.05 < min(gains) < -1e-3
    assert max(gains) > 0.001


@pytest.mark.parametrize(("length", "num_pairs"), [(2, 20), (3, 2)])
def test_block_verification_attains_the_chain_optimum(length: int, num_pairs: int) -> None:
    for seed in range(num_pairs):
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
    for seed in range(5):
        target, draft = (RandomDistributions(3, 2 * seed + i, is_exact=True) for i in range(2))
        drafter = ToyDrafter(SELECTED, FixedShape.from_paths("[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]"), (draft,))
        ((_, tree),) = enumerate_traces(drafter)
        paths = [prod(target(c[:i])[token] for i, token in enumerate(c)) for c in tree.contexts[1:]]
        assert exact_distribution(RULES[name], drafter, target).mean_accepted == sum(paths)
