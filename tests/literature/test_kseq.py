"""K-SEQ: its exact distribution, its share of the optimum, and what its conditions are for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers.toys import SamplingSource, as_batch

from treespec.errors import ConfigError, RuleMismatchError
from treespec.literature import KSeq, kseq
from treespec.literature.optimum import optimum_iid
from treespec.testing import (
    SHAPES,
    AdaptiveWidth,
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    assert_lossless,
    distribution_pairs,
    exact_distribution,
)
from treespec.tree import IID, WITHOUT_REPLACEMENT, TokenTree, TreeBatch
from treespec.verification import GivenUniforms, TokenVerification, resolve, verify

FIXED_SHAPES = [name for name in SHAPES if name != "adaptive width"]


@pytest.mark.parametrize("shape", FIXED_SHAPES)
@pytest.mark.parametrize("vocab_size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_exact_distribution_in_float64(shape, vocab_size, record_property):
    if shape in ("3-1-1", "unbalanced") and vocab_size == 3:
        vocab_size = 2  # The cost grows as V^nodes: 3-1-1 over three tokens has 3^9 drafts.
    for name, (target, drafts) in distribution_pairs(vocab_size, is_exact=False).items():
        assert_lossless(KSeq(), ToyDrafter(IID, SHAPES[shape], drafts), target)
        record_property("exact_case", ("k_seq", IID, shape, f"{name}, {vocab_size} tokens", False))


@pytest.mark.parametrize("name", list(distribution_pairs(3, is_exact=True)))
@pytest.mark.parametrize("num_bisections", [0, 1, 4])
def test_exact_distribution_in_rational_arithmetic_however_coarse_the_bisection(name, num_bisections, record_property):
    target, drafts = distribution_pairs(3, is_exact=True)[name]
    rule = KSeq(num_bisections)
    assert assert_lossless(rule, ToyDrafter(IID, FixedShape.kary(3), drafts), target).error == 0
    target, drafts = distribution_pairs(2, is_exact=True)[name]
    assert assert_lossless(rule, ToyDrafter(IID, FixedShape.kary(2, 2), drafts), target).error == 0
    for shape in ("3", "2x2"):
        record_property("exact_case", ("k_seq", IID, shape, f"{name}, {num_bisections} bisections", True))


RATIONAL_CASES = [
    (shape, vocab_size, edge)
    for shape, vocab_size in (("chain", 3), ("3-1-1", 2), ("unbalanced", 2), ("adaptive depth", 2))
    for edge in distribution_pairs(2, is_exact=True)
] + [("adaptive depth", 3, "zeros")]


@pytest.mark.parametrize(("shape", "vocab_size", "edge"), RATIONAL_CASES)
def test_exact_distribution_in_rational_arithmetic(shape, vocab_size, edge, record_property):
    """Over two tokens where three would take seconds: Fractions grow with every bisection."""
    target, drafts = distribution_pairs(vocab_size, is_exact=True)[edge]
    assert assert_lossless(KSeq(4), ToyDrafter(IID, SHAPES[shape], drafts), target).error == 0
    record_property("exact_case", ("k_seq", IID, shape, f"{edge}, {vocab_size} tokens, 4 bisections", True))


def record_mutant(record_property, name: str, total_variation: Fraction) -> None:
    record_property("table", f"mutant: {name:<58} total variation {float(total_variation):.6f}")


def test_a_ratio_below_the_least_is_caught(monkeypatch, record_property):
    """The bisection must keep its upper end: with the lower one the rest would be negative somewhere."""
    target, draft = RandomDistributions(3, 1, is_exact=True), RandomDistributions(3, 2, is_exact=True)
    drafter = ToyDrafter(IID, FixedShape.kary(2), (draft,))
    assert exact_distribution(KSeq(), drafter, target).error == 0
    monkeypatch.setattr(kseq, "tightening", lambda probs, draft_probs, k, n: Fraction(1))
    shift = exact_distribution(KSeq(), drafter, target).total_variation
    record_mutant(record_property, "k_seq with a ratio below the least", shift)
    assert shift > Fraction(1, 100)


def test_acceptance_is_within_a_factor_of_the_optimum(record_property):
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(300):
        vocab, k = int(rng.integers(2, 30)), int(rng.integers(1, 9))
        target, draft = rng.dirichlet(np.full(vocab, 0.5), size=2)
        ratio = kseq.tightening(target, draft, k, 40)
        accepted = 1 - (1 - np.minimum(draft, target / ratio).sum()) ** k
        optimum = float(optimum_iid(torch.tensor(target), torch.tensor(draft), k))
        shares.append(accepted / optimum)
    record_property("table", f"k_seq, share of the optimum: least {min(shares):.4f}, mean {np.mean(shares):.4f}")
    assert 1 - 1 / math.e <= min(shares) <= max(shares) <= 1 + 1e-9


def test_acceptance_of_one_node_is_the_closed_form():
    target, draft = RandomDistributions(4, 5), RandomDistributions(4, 6)
    result = exact_distribution(KSeq(40), ToyDrafter(IID, FixedShape.kary(2), (draft,)), target)
    ratio = kseq.tightening(target(()), draft(()), 2, 40)
    beta = np.minimum(draft(()), target(()) / ratio).sum()
    assert result.mean_accepted == pytest.approx(1 - (1 - beta) ** 2, abs=1e-12)
    assert result.mean_accepted == pytest.approx(ratio * beta, abs=1e-9)


def test_on_a_chain_it_is_token_verification():
    target, draft = RandomDistributions(3, 7), RandomDistributions(3, 8)
    rng = np.random.default_rng(0)
    for _ in range(200):
        tree = ToyDrafter(IID, FixedShape.kary(1, 1, 1), (draft,))(SamplingSource(rng))
        probs = [target(context).copy() for context in tree.contexts]
        source = GivenUniforms(rng.random(4), rng.random(4))
        assert KSeq().verify(tree, probs.__getitem__, source) == TokenVerification().verify(
            tree, probs.__getitem__, source
        )


def test_torch_agrees_with_numpy_coin_for_coin():
    rng = np.random.default_rng(1)
    for seed in range(300):
        target, draft = (
            RandomDistributions(6, seed, zero_share=0.3),
            RandomDistributions(6, seed + 1000, zero_share=0.3),
        )
        toy = ToyDrafter(IID, FixedShape.kary(3, 2), (draft,))(SamplingSource(rng))
        trees, target_probs = as_batch([(toy, target)])
        coins, draws = rng.random((2, toy.num_nodes))
        probs = [target(context).copy() for context in toy.contexts]
        expected = KSeq().verify(toy, probs.__getitem__, GivenUniforms(coins, draws))
        actual = verify(trees, target_probs, "k_seq", coins=torch.tensor(coins)[None], draws=torch.tensor(draws)[None])
        assert actual == [expected]


def test_what_it_does_not_support_is_named():
    probs = torch.full((1, 4), 0.25)
    flags = torch.tensor([False, True, True])
    index = torch.tensor([-1, 0, 0])
    tokens, parents = torch.tensor([0, 1, 2]), torch.tensor([-1, 0, 0])
    without = TokenTree(tokens, parents, probs, index, flags)
    with pytest.raises(RuleMismatchError, match=r"iid.*without_replacement.*recursive.*traversal"):
        resolve(KSeq(), True, TreeBatch.from_trees([without]))
    adaptive = TokenTree(tokens, parents, probs, index, is_width_fixed=False)
    with pytest.raises(RuleMismatchError, match=r"is_width_fixed.*recursive"):
        resolve(KSeq(), True, TreeBatch.from_trees([adaptive]))
    assert KSeq().reason_against(TreeBatch.from_trees([TokenTree(tokens, parents, probs, index)])) is None


def test_its_conditions_are_needed(record_property):
    target, draft = RandomDistributions(3, 1, is_exact=True), RandomDistributions(3, 2, is_exact=True)
    adaptive = exact_distribution(KSeq(), ToyDrafter(IID, AdaptiveWidth(2, 1), (draft,)), target)
    without = exact_distribution(KSeq(), ToyDrafter(WITHOUT_REPLACEMENT, FixedShape.kary(2), (draft,)), target)
    record_property("table", f"k_seq forced on adaptive widths: off by {float(adaptive.total_variation):.4f}")
    record_property("table", f"k_seq forced on draws without replacement: off by {float(without.total_variation):.4f}")
    assert adaptive.total_variation > Fraction(1, 200)
    assert without.total_variation > Fraction(1, 200)


@dataclass(frozen=True)
class _DuplicatesRemoved:
    """A mutant: forgets a sibling whose token stood before."""

    rule: KSeq

    def verify(self, tree, target_probs, rng):
        full = tree.children

        def children(node):
            seen: set[int] = set()
            return [c for c in full(node) if not (tree.token(c) in seen or seen.add(tree.token(c)))]

        tree.children = children
        try:
            return self.rule.verify(tree, target_probs, rng)
        finally:
            tree.children = full


def test_removing_duplicates_is_caught(record_property):
    target, draft = RandomDistributions(3, 1, is_exact=True), RandomDistributions(3, 2, is_exact=True)
    mutant = exact_distribution(_DuplicatesRemoved(KSeq()), ToyDrafter(IID, FixedShape.kary(2), (draft,)), target)
    record_mutant(record_property, "duplicates removed under k_seq", mutant.total_variation)
    assert mutant.total_variation > Fraction(1, 1000)


@pytest.mark.parametrize("num_bisections", [-1, 2.5, "many"])
def test_an_invalid_number_of_bisections_is_refused(num_bisections):
    with pytest.raises(ConfigError, match="num_bisections must be"):
        KSeq(num_bisections)
