"""The optimum at a node: against linear programmes."""

import functools
import itertools
import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from treespec.errors import ConfigError
from treespec.literature.optimum import optimum_iid, optimum_mixed, optimum_selected, optimum_without_replacement

Pairs = dict[frozenset[int], float]


def set_distributions(draft: np.ndarray, k: int, is_without_replacement: bool) -> Pairs:
    """The distribution of the set of drafted siblings."""
    probs: Pairs = defaultdict(float)
    for tokens in itertools.product(range(len(draft)), repeat=k):
        weight, rest = 1.0, draft.copy()
        for token in tokens:
            weight *= rest[token]
            if is_without_replacement and weight > 0:
                rest[token] = 0
                rest = rest / rest.sum() if rest.sum() > 0 else rest
        if weight > 0:
            probs[frozenset(tokens)] += weight
    return probs


def transport_optimum(target: np.ndarray, sets: Pairs) -> float:
    """max sum of pi(T, y), y in T, by a linear programme."""
    edges = [(t, y) for t, tokens in enumerate(sets) for y in tokens]
    rows = np.zeros((len(sets) + len(target), len(edges)))
    for column, (t, y) in enumerate(edges):
        rows[t, column] = rows[len(sets) + y, column] = 1
    limits = [*sets.values(), *target]
    return -linprog(-np.ones(len(edges)), A_ub=rows, b_ub=limits, method="highs").fun


def random_probs(rng: np.random.Generator, vocab: int) -> np.ndarray:
    probs = rng.dirichlet(np.full(vocab, 0.5)) * (rng.random(vocab) > 0.2)
    probs[rng.integers(vocab)] += 1e-3
    return probs / probs.sum()


@pytest.mark.parametrize("is_without_replacement", [False, True])
def test_per_node_optimum_is_that_of_the_linear_programme(is_without_replacement):
    rng = np.random.default_rng(5)
    for _ in range(30):
        vocab, k = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        target, draft = random_probs(rng, vocab), random_probs(rng, vocab)
        if is_without_replacement:
            sets = set_distributions(draft, min(k, int((draft > 0).sum())), True)
            found, error = optimum_without_replacement(torch.tensor(target), torch.tensor(draft), k)
        else:
            sets, error = set_distributions(draft, k, False), 0.0
            found = float(optimum_iid(torch.tensor(target), torch.tensor(draft), k))
        assert error <= 1e-9
        assert found == pytest.approx(transport_optimum(target, sets), abs=error + 1e-8)


def exact_inside(draft: list[Fraction], k: int) -> list[Fraction]:
    """Pr(k draws without replacement lie in each prefix), in rational arithmetic."""
    inside = [Fraction(0)] * len(draft)
    for tokens in itertools.permutations(range(len(draft)), k):
        weight, left = Fraction(1), Fraction(1)
        for token in tokens:
            weight *= draft[token] / left
            left -= draft[token]
        for prefix in range(max(tokens), len(draft)):
            inside[prefix] += weight
    return inside


@pytest.mark.parametrize(("k", "tolerance"), [(2, 1e-9), (3, 1e-4), (4, 1e-11)])
def test_quadrature_keeps_its_bound(k, tolerance):
    rng = np.random.default_rng(k)
    for scale in (1, 20, 400):
        # Scales up to 400 spread the masses over a hundred orders of magnitude.
        weights = [Fraction(math.exp(value)) for value in rng.normal(0, 1, 7) * math.sqrt(scale)]
        draft = [w / sum(weights) for w in weights]
        target = rng.dirichlet(np.ones(7))
        order = np.argsort([t / float(d) for t, d in zip(target, draft, strict=True)])
        inside = exact_inside([draft[i] for i in order], k)
        expected = 1 + min(0.0, *(float(i) for i in np.cumsum(target[order]) - np.array([float(p) for p in inside])))
        found, error = optimum_without_replacement(
            torch.tensor(target), torch.tensor([float(d) for d in draft], dtype=torch.float64), k, tolerance
        )
        assert error <= tolerance
        assert abs(found - expected) <= error + 1e-11


@pytest.mark.parametrize("k", [1, 2, 3, 16])
def test_edge_distributions(k):
    one_hot = torch.eye(4, dtype=torch.float64)
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    almost = torch.tensor([1 - 3e-12, 1e-12, 1e-12, 1e-12], dtype=torch.float64)
    assert optimum_without_replacement(one_hot[0], one_hot[1], k).value == pytest.approx(0, abs=1e-9)
    assert optimum_without_replacement(one_hot[0], one_hot[0], k).value == pytest.approx(1, abs=1e-9)
    # Fewer tokens than siblings: all of them are drafted.
    assert optimum_without_replacement(uniform, uniform, k).value == pytest.approx(1, abs=1e-9)
    reachable = min(k, 4) / 4
    assert optimum_without_replacement(one_hot[2], uniform, k).value == pytest.approx(reachable, abs=1e-9)
    expected = 1e-12 if k == 1 else min(k - 1, 3) / 3
    assert optimum_without_replacement(one_hot[2], almost, k).value == pytest.approx(expected, abs=1e-9)
    assert optimum_without_replacement(torch.ones(1), torch.ones(1), k).value == pytest.approx(1, abs=1e-9)
    assert float(optimum_iid(one_hot[2], uniform, k)) == pytest.approx(1 - 0.75**k)


def test_selected_and_mixed_are_those_of_the_linear_programme():
    rng = np.random.default_rng(2)
    for _ in range(20):
        vocab = int(rng.integers(3, 7))
        target, draft = random_probs(rng, vocab), rng.dirichlet(np.ones(vocab))
        selected = np.argsort(-draft)[: int(rng.integers(1, vocab - 1))]
        rest = draft.copy()
        rest[selected] = 0
        rest /= rest.sum()
        sets = {frozenset([*selected.tolist(), x]): rest[x] for x in np.flatnonzero(rest).tolist()}
        found = optimum_mixed(torch.tensor(target), torch.tensor(rest), torch.tensor(selected))
        assert float(found) == pytest.approx(transport_optimum(target, sets), abs=1e-8)
        only = optimum_selected(torch.tensor(target), torch.tensor([*selected, selected[0]]))
        assert float(only) == pytest.approx(transport_optimum(target, {frozenset(selected.tolist()): 1.0}), abs=1e-8)


def test_where_nothing_is_left_to_sample_only_the_selected_count_and_leading_axes_are_batched():
    target = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    assert float(optimum_mixed(target, torch.zeros(3), torch.tensor([0]))) == pytest.approx(0.2)
    drafts = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = optimum_mixed(target.expand(2, -1), drafts, torch.tensor([[0], [0]]))
    assert found.tolist() == pytest.approx([0.2, 0.7])

    target, draft = torch.randn(2, 3, 5, 9, generator=torch.Generator().manual_seed(0)).softmax(-1)
    found = optimum_iid(target, draft, 2)
    assert found.shape == (3, 5)
    assert found[1, 4] == optimum_iid(target[1, 4], draft[1, 4], 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda probs: optimum_iid(probs, torch.full((2,), 0.5), 2), r"one shape, got \[4\] and \[2\]"),
        (lambda probs: optimum_iid(probs, probs, 0), "k must be a positive int, got 0"),
        (lambda probs: optimum_without_replacement(probs, probs, 17), "at most 16 siblings"),
        (lambda probs: optimum_without_replacement(probs[None], probs[None], 2), r"expected distributions \[V\]"),
        (lambda probs: optimum_without_replacement(probs, probs, 3, tolerance=1e-60), r"tolerance must lie in"),
    ],
)
def test_misuse_is_named(call, words):
    with pytest.raises(ConfigError, match=words):
        call(torch.full((4,), 0.25))


EMPTY, DISTRIBUTION = torch.zeros(3), torch.tensor([0.2, 0.5, 0.3])
NOT_DISTRIBUTIONS = [*map(torch.tensor, ([0.5, torch.nan, 0.5], [1.5, -0.5, 0.0], [0.4, 1.0, 0.6], [0, 1, 0]))]
MIXED = functools.partial(optimum_mixed, selected=torch.tensor([0]))
FUNCTIONS = [functools.partial(optimum_iid, k=2), functools.partial(optimum_without_replacement, k=2), MIXED]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.func.__name__)
def test_invalid_distributions_are_refused(function):
    for wrong in NOT_DISTRIBUTIONS:
        with pytest.raises(ConfigError, match="target_probs must"):
            function(wrong, DISTRIBUTION)
        with pytest.raises(ConfigError, match="draft_probs must"):
            function(DISTRIBUTION, wrong)
        with pytest.raises(ConfigError, match="target_probs must"):
            optimum_selected(wrong, torch.tensor([0]))
    with pytest.raises(ConfigError, match="must"):
        function(EMPTY, EMPTY)
    if function is not MIXED:  # Which needs nothing to sample from.
        with pytest.raises(ConfigError, match="draft_probs must"):
            function(DISTRIBUTION, EMPTY)
