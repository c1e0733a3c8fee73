"""Lossy rules: what exactly they emit, where they become lossless, and that nothing chooses them by itself."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from treespec.errors import ConfigError, RuleMismatchError
from treespec.literature import EnsembleVerification, ThresholdAcceptance, TypicalAcceptance
from treespec.testing import (
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    assert_lossless,
    distribution_pairs,
    enumerate_traces,
    exact_distribution,
)
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT, TokenTree, TreeBatch
from treespec.verification import RULES, GivenUniforms, TargetWalk, resolve, supporting_rules

LOSSY = [TypicalAcceptance(), EnsembleVerification(), ThresholdAcceptance()]
TREE = FixedShape.kary(2, 2)


@pytest.mark.parametrize("rule", LOSSY, ids=lambda rule: rule.name)
def test_the_deviation_is_measured_and_not_zero(rule):
    target, draft = RandomDistributions(3, 1), RandomDistributions(3, 2)
    result = exact_distribution(rule, ToyDrafter(IID, TREE, (draft,)), target)
    assert result.total_weight == pytest.approx(1, abs=1e-12)
    assert result.total_variation > 0.005


def test_none_is_ever_chosen_or_recommended():
    tokens, parents = torch.tensor([0, 1, 2]), torch.tensor([-1, 0, 0])
    probs, index = torch.full((1, 4), 0.25), torch.tensor([-1, 0, 0])
    for tree in (TokenTree(tokens, parents), TokenTree(tokens, parents, probs, index)):
        batch = TreeBatch.from_trees([tree])
        assert resolve("auto", True, batch).is_lossless
        assert not {rule.name for rule in LOSSY} & set(supporting_rules(batch))
    assert not any(rule.is_lossless for rule in LOSSY)
    assert all(RULES[rule.name] == rule for rule in LOSSY)


@pytest.mark.parametrize("scheme", [MIXED, WITHOUT_REPLACEMENT])
def test_thresholds_of_one_are_the_target_walk(scheme):
    rule = ThresholdAcceptance(single=1, accumulated=1)
    for target, drafts in distribution_pairs(3, is_exact=True).values():
        drafter = ToyDrafter(scheme, FixedShape.kary(2, 1), drafts)
        ours, walk = assert_lossless(rule, drafter, target), exact_distribution(TargetWalk(), drafter, target)
        assert ours.mean_accepted == walk.mean_accepted


def test_thresholds_accept_what_they_say():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    tree = next(
        tree for _, tree in enumerate_traces(ToyDrafter(SELECTED, FixedShape.kary(3), (lambda c: probs[::-1],)))
    )
    assert [tree.token(c) for c in tree.children(0)] == [3, 2, 1]

    def accepts(rule):
        """Probability of each child, and the distribution of the next token after the rejection of all."""
        children, rest = [Fraction(0)] * 3, np.zeros(4)
        for weight, verdict in enumerate_traces(lambda rng: rule.verify(tree, lambda node: probs, rng)):
            if verdict.num_accepted:
                children[verdict.path[1] - 1] += weight
            else:
                rest[verdict.next_token] += weight
        return [float(c) for c in children], rest

    children, rest = accepts(ThresholdAcceptance(single=1.0, accumulated=0.4))
    assert children == pytest.approx([0.05 / 0.4, 0.15 / 0.4, 0.5])
    assert rest.tolist() == [0, 0, 0, 0]
    children, _ = accepts(ThresholdAcceptance(single=0.3, accumulated=1.0))
    assert children == pytest.approx([0.05, 0.15, 0.8])
    children, rest = accepts(ThresholdAcceptance(single=1.0, accumulated=0.8))
    assert children == pytest.approx([0.05 / 0.8, 0.15 / 0.8, 0.3 / 0.8])
    assert rest == pytest.approx([1 - 0.5 / 0.8, 0, 0, 0])


@pytest.mark.parametrize("scheme", [IID, WITHOUT_REPLACEMENT])
def test_the_ensemble_has_exactly_the_ensembles_distribution(scheme):
    for target, drafts in distribution_pairs(3, is_exact=True).values():
        weight = Fraction(2, 3)

        def ensemble(context, target=target, draft=drafts[0], weight=weight):
            # Children stand below the root and its children; a token after a leaf is the target's own.
            return weight * target(context) + (1 - weight) * draft(context) if len(context) < 2 else target(context)

        drafter = ToyDrafter(scheme, FixedShape.kary(2, 1), drafts)
        emitted = exact_distribution(EnsembleVerification(weight), drafter, target)
        truth = exact_distribution(TargetWalk(), drafter, ensemble)
        accepted = exact_distribution(RULES["recursive"], drafter, ensemble)
        assert emitted.mean_accepted == accepted.mean_accepted
        first = emitted.probs.sum((1, 2)), truth.target_probs.sum((1, 2))
        assert abs(first[0] - first[1]).max() == 0


def test_typical_acceptance_keeps_the_longest_then_the_likeliest_path():
    probs = {(): np.array([0.45, 0.45, 0.1]), (0,): np.array([0.05, 0.05, 0.9]), (1,): np.array([0.8, 0.1, 0.1])}

    def verdict(drafts, epsilon=0.3, delta=0.5):
        tree = TokenTree.from_paths("[(0,), (1,), (0, 0), (1, 0)]", [9, *drafts])
        contexts = [(), (drafts[0],), (drafts[1],), (drafts[0], drafts[2]), (drafts[1], drafts[3])]
        rule = TypicalAcceptance(epsilon, delta)
        rows = [torch.tensor(probs.get(context, [0.0, 0.0, 1.0])) for context in contexts]
        return rule.verify(tree, rows.__getitem__, GivenUniforms([0.0] * 5, [0.5] * 5))

    assert verdict([0, 1, 1, 0]) == ((0, 2, 4), 2, True)  # Only the second path is typical throughout.
    assert verdict([0, 1, 2, 0]) == ((0, 1, 3), 2, True)  # Both are: .45 * .9 beats .45 * .8.
    assert verdict([1, 0, 0, 2]) == ((0, 2, 4), 2, True)
    assert verdict([2, 2, 0, 0], delta=0.5) == ((0,), 1, False)  # Nothing is.


def test_typical_acceptance_compares_with_the_entropy():
    probs = torch.tensor([0.2, 0.3, 0.5])
    entropy = -sum(p * math.log(p) for p in probs.tolist())
    tree = TokenTree.from_paths("[(0,)]", [0, 0])

    def is_accepted(delta, epsilon=1.0):
        rng = GivenUniforms([0.0] * 2, [0.0] * 2)
        return TypicalAcceptance(epsilon, delta).verify(tree, lambda node: probs, rng).num_accepted == 1

    edge = 0.2 * math.exp(entropy)
    assert is_accepted(edge - 1e-4)
    assert not is_accepted(edge + 1e-4)
    assert is_accepted(1.0, epsilon=0.19)
    assert not is_accepted(1.0, epsilon=0.21)


def test_on_one_hot_targets_typical_acceptance_is_the_target_walk():
    target, drafts = distribution_pairs(3, is_exact=True)["one-hot target"]
    for scheme in (SELECTED, WITHOUT_REPLACEMENT):
        drafter = ToyDrafter(scheme, TREE, drafts)
        ours, walk = (exact_distribution(rule, drafter, target) for rule in (TypicalAcceptance(), TargetWalk()))
        assert (ours.error, ours.mean_accepted) == (0, walk.mean_accepted)


def test_misuse_is_named():
    with pytest.raises(ConfigError, match="epsilon"):
        TypicalAcceptance(epsilon=1.5)
    with pytest.raises(ConfigError, match="target_weight"):
        EnsembleVerification(-0.1)
    with pytest.raises(ConfigError, match=r"delta must lie in \[0, 1\], got 'low'"):
        TypicalAcceptance(delta="low")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"accumulated must lie in \(0, 1\]"):
        ThresholdAcceptance(accumulated=0)
    selected = TreeBatch.from_trees([TokenTree(torch.tensor([0, 1]), torch.tensor([-1, 0]))])
    with pytest.raises(RuleMismatchError, match="ensemble"):
        resolve(EnsembleVerification(), True, selected)
