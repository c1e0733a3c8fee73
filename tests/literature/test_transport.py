"""Optimal transport: the flow against networkx, the rules' exact distributions, and that no rule
accepts more at a node."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction

import networkx
import numpy as np
import pytest
import torch
from helpers.toys import SamplingSource

from treespec import verification
from treespec.errors import LogitsError, RuleMismatchError
from treespec.literature import OptimalTransport, TransportTraversal
from treespec.literature.optimum import optimum_iid, optimum_without_replacement
from treespec.literature.transport import best_transport, pair_supply, transport_siblings
from treespec.sampling import draw_without_replacement, truncate_probs
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
from treespec.verification import GivenUniforms, resolve, verify

RULES = [OptimalTransport(), TransportTraversal()]
SCHEMES = [IID, WITHOUT_REPLACEMENT]
PAIR_SHAPES = ["chain", "2x2", "unbalanced", "adaptive depth"]

by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
by_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def random_fractions(rng: np.random.Generator, size: int, num_zeros: int = 0) -> list[Fraction]:
    weights = rng.integers(1, 30, size)
    weights[rng.permutation(size)[:num_zeros]] = 0
    return [Fraction(int(w), int(max(weights.sum(), 1))) for w in weights]


def networkx_flow(demand: list[Fraction], supply: list[list[Fraction]]) -> Fraction:
    graph = networkx.DiGraph()
    for i in range(len(demand)):
        graph.add_edge(("token", i), "sink", capacity=demand[i])
        for j in range(i, len(demand)):
            graph.add_edge("source", ("pair", i, j), capacity=supply[i][j])
            for token in {i, j}:
                graph.add_edge(("pair", i, j), ("token", token))
    return networkx.maximum_flow_value(graph, "source", "sink")


def is_feasible(accepted, demand, supply, slack=0) -> bool:
    size = range(len(demand))
    return (
        all(accepted[i][j] >= 0 for i in size for j in size)
        and all(sum(accepted[i]) <= demand[i] + slack for i in size)
        and all(accepted[i][i] <= supply[i][i] + slack for i in size)
        and all(accepted[i][j] + accepted[j][i] <= supply[i][j] + slack for i in size for j in range(i))
    )


@by_scheme
def test_the_flow_is_feasible_and_as_large_as_networkx_finds(scheme):
    rng = np.random.default_rng(4)
    for _ in range(60):
        size = int(rng.integers(2, 8))
        draft = random_fractions(rng, size)
        scale = Fraction(int(rng.integers(1, 11)), 10)
        demand = [scale * p for p in random_fractions(rng, size, num_zeros=int(rng.integers(0, 2)))]
        supply = pair_supply(draft, scheme == WITHOUT_REPLACEMENT)
        assert sum(supply[i][j] for i in range(size) for j in range(i + 1)) == 1
        accepted = best_transport(demand, supply)
        assert is_feasible(accepted, demand, supply)
        assert sum(map(sum, accepted)) == networkx_flow(demand, supply)
        floats = best_transport([float(d) for d in demand], [[float(s) for s in row] for row in supply])
        assert sum(map(sum, floats)) == pytest.approx(float(sum(map(sum, accepted))), abs=1e-12)


@by_scheme
def test_the_flow_is_optimal_at_the_widest_support(scheme):
    rng = np.random.default_rng(9)
    for _ in range(20):
        draft, target = rng.dirichlet(np.full(20, 0.5), size=2) + 1e-6
        draft, target = draft / draft.sum(), target / target.sum()
        accepted = best_transport(target.tolist(), pair_supply(draft.tolist(), scheme == WITHOUT_REPLACEMENT))
        probs = torch.tensor(target), torch.tensor(draft)
        best = float(optimum_iid(*probs, 2)) if scheme == IID else optimum_without_replacement(*probs, 2).value
        assert sum(map(sum, accepted)) == pytest.approx(best, abs=1e-10)


@by_rule
@by_scheme
@pytest.mark.parametrize("shape", PAIR_SHAPES)
@pytest.mark.parametrize(
    "vocab_size", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_exact_distribution_in_float64(rule, scheme, shape, vocab_size, record_property):
    if shape == "unbalanced" and vocab_size == 3 and scheme == IID:
        vocab_size = 2
    for name, (target, drafts) in distribution_pairs(vocab_size, is_exact=False).items():
        assert_lossless(rule, ToyDrafter(scheme, SHAPES[shape], drafts), target)
        record_property("exact_case", (rule.name, scheme, shape, f"{name}, {vocab_size} tokens", False))


@by_rule
@by_scheme
@pytest.mark.parametrize("name", list(distribution_pairs(3, is_exact=True)))
def test_exact_distribution_in_rational_arithmetic(rule, scheme, name, record_property):
    target, drafts = distribution_pairs(3, is_exact=True)[name]
    assert assert_lossless(rule, ToyDrafter(scheme, FixedShape.kary(2, 1), drafts), target).error == 0
    target, drafts = distribution_pairs(2, is_exact=True, seed=1)[name]
    assert assert_lossless(rule, ToyDrafter(scheme, SHAPES["unbalanced"], drafts), target).error == 0
    for shape in ("2-1", "unbalanced"):
        record_property("exact_case", (rule.name, scheme, shape, name, True))


@pytest.mark.slow
@by_rule
@by_scheme
@pytest.mark.parametrize("shape", ["chain", "2x2", "adaptive depth"])
@pytest.mark.parametrize("name", list(distribution_pairs(3, is_exact=True)))
def test_exact_distribution_of_every_pair_shape_in_rational_arithmetic(rule, scheme, shape, name, record_property):
    vocab_size = 2 if shape == "2x2" else 3  # Three tokens: the test below.
    target, drafts = distribution_pairs(vocab_size, is_exact=True)[name]
    assert assert_lossless(rule, ToyDrafter(scheme, SHAPES[shape], drafts), target).error == 0
    record_property("exact_case", (rule.name, scheme, shape, f"{name}, {vocab_size} tokens", True))


@pytest.mark.slow
@by_rule
@by_scheme
def test_exact_distribution_of_a_two_by_two_tree_over_three_tokens(rule, scheme, record_property):
    target, drafts = distribution_pairs(3, is_exact=True, seed=2)["generic"]
    assert assert_lossless(rule, ToyDrafter(scheme, FixedShape.kary(2, 2), drafts), target).error == 0
    record_property("exact_case", (rule.name, scheme, "2x2", "generic", True))


@by_rule
@by_scheme
def test_the_per_node_optimum_is_attained(rule, scheme):
    for seed in range(40):
        vocab = 2 + seed % 5
        target, draft = (
            RandomDistributions(vocab, seed, zero_share=0.2),
            RandomDistributions(vocab, seed + 500, zero_share=0.2),
        )
        result = exact_distribution(rule, ToyDrafter(scheme, FixedShape.kary(2), (draft,)), target)
        probs = torch.tensor(target(())), torch.tensor(draft(()))
        best = float(optimum_iid(*probs, 2)) if scheme == IID else optimum_without_replacement(*probs, 2).value
        assert result.mean_accepted == pytest.approx(best, abs=1e-12)


def truncated_tree(num_tokens: int, generator: torch.Generator, logits: torch.Tensor) -> TokenTree:
    probs = truncate_probs(logits.softmax(-1), num_tokens)
    tokens, _ = draw_without_replacement(probs, 2, generator)
    return TokenTree(
        torch.cat([torch.tensor([0]), tokens]),
        torch.tensor([-1, 0, 0]),
        probs[None],
        torch.tensor([-1, 0, 0]),
        torch.tensor([False, True, True]),
    )


@pytest.mark.slow
@by_rule
def test_truncated_float32_drafts_have_the_targets_distribution(rule):
    """A large vocabulary cannot be enumerated: empirical frequencies of the heaviest tokens, five sigma."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1000, generator=generator) * 3
    target = (logits + torch.randn(1000, generator=generator)).softmax(-1)
    num_samples, counts = 3000, torch.zeros(1000)
    for _ in range(num_samples):
        tree = truncated_tree(8, generator, logits)
        verdict = verify(tree, target.expand(3, -1), rule, generator=generator)
        counts[tree.token(verdict.path[1]) if verdict.num_accepted else verdict.next_token] += 1
    for token in target.topk(10).indices.tolist():
        prob = float(target[token])
        sigma = (prob * (1 - prob) / num_samples) ** 0.5
        assert abs(float(counts[token]) / num_samples - prob) < 5 * sigma


def test_truncating_keeps_the_most_probable_tokens():
    probs = truncate_probs(torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.5, 0.0]]), 2)
    assert torch.allclose(probs[0], torch.tensor([0.0, 4 / 7, 0.0, 3 / 7]))
    assert probs[1].count_nonzero() == 2
    assert torch.allclose(probs.sum(-1), torch.ones(2))
    assert torch.equal(truncate_probs(torch.tensor([0.5, 0.5]), 7), torch.tensor([0.5, 0.5]))


@by_rule
def test_what_they_do_not_support_is_named(rule):
    index, parents = torch.tensor([-1, 0, 0]), torch.tensor([-1, 0, 0])
    tokens = torch.tensor([0, 1, 2])
    narrow, wide = torch.full((1, 20), 0.05), torch.full((1, 21), 1 / 21)

    def check(*args, **kwargs):
        resolve(rule, True, TreeBatch.from_trees([TokenTree(*args, **kwargs)]))

    check(tokens, parents, narrow, index)
    with pytest.raises(RuleMismatchError, match=r"at most 20 tokens, and one has 21.*truncate_probs.*recursive"):
        check(tokens, parents, wide, index)
    with pytest.raises(RuleMismatchError, match=r"is_width_fixed.*traversal"):
        check(tokens, parents, narrow, index, is_width_fixed=False)
    with pytest.raises(RuleMismatchError, match=r"some are selected.*target_walk"):
        check(tokens, parents)
    with pytest.raises(RuleMismatchError, match=r"at most 2 siblings, and a node has 3.*k_seq"):
        check(torch.tensor([0, 1, 2, 3]), torch.tensor([-1, 0, 0, 0]), narrow, torch.tensor([-1, 0, 0, 0]))


@by_rule
def test_a_fixed_width_is_needed(rule, record_property):
    target, draft = RandomDistributions(3, 1, is_exact=True), RandomDistributions(3, 2, is_exact=True)
    forced = exact_distribution(rule, ToyDrafter(IID, AdaptiveWidth(2, 1), (draft,)), target)
    record_property("table", f"{rule.name} forced on adaptive widths: off by {float(forced.total_variation):.4f}")
    assert forced.total_variation > Fraction(1, 200)


@pytest.mark.parametrize(
    "name", [*(rule.name for rule in RULES), "k_seq", "ensemble", "threshold", "typical_acceptance"]
)
@pytest.mark.parametrize("width", [1, 2])
def test_nan_in_a_target_distribution_never_passes(name, width):
    """The engine and `verify` check distributions beforehand; a rule called by hand must not let NaN decide either."""
    draft = RandomDistributions(3, 2)
    rng = np.random.default_rng(0)
    for token in range(3):
        for _ in range(20):
            tree = ToyDrafter(IID, FixedShape.kary(width), (draft,))(SamplingSource(rng))
            probs = np.full(3, 0.5)
            probs[token] = np.nan
            source = GivenUniforms(rng.random(3), rng.random(3))
            with pytest.raises(LogitsError):
                verification.RULES[name].verify(tree, lambda node, probs=probs: probs.copy(), source)


@dataclass(frozen=True)
class _RestOfThisPair:
    """A mutant: the rest is what *this* pair left of the target, not what all pairs left."""

    rule: OptimalTransport | TransportTraversal

    def verify(self, tree, target_probs, rng):
        def mutated(tree, children, weights):
            probs, rest = transport_siblings(tree, children, weights)
            wrong = weights.copy()
            for child, prob in zip(children, probs, strict=True):
                wrong[tree.token(child)] = max(wrong[tree.token(child)] - prob, 0)
            return probs, wrong if wrong.sum() > 0 else rest

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules[type(self.rule).__module__], "transport_siblings", mutated)
            return self.rule.verify(tree, target_probs, rng)


@by_rule
def test_a_rest_that_depends_on_the_pair_is_caught(rule, record_property):
    target, draft = RandomDistributions(3, 1, is_exact=True), RandomDistributions(3, 2, is_exact=True)
    mutant = exact_distribution(_RestOfThisPair(rule), ToyDrafter(IID, FixedShape.kary(2), (draft,)), target)
    name = f"{rule.name}: a rest that depends on the pair"
    record_property("table", f"mutant: {name:<58} total variation {float(mutant.total_variation):.6f}")
    assert mutant.total_variation > Fraction(1, 1000)
