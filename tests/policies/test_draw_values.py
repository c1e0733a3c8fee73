"""Draw values of sampled children: against plain formulas, the heap that they stand for, and exactly lossless."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from helpers.grown_trees import drawn_tree
from helpers.toy_models import TableLM, TableSource
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.policies import BestFirst, dyspec
from treespec.policies.children import Children
from treespec.policies.draw_values import ACCEPTANCE, SAMPLING_GAIN, VISIT, draw_values
from treespec.testing import (
    ConditionalProbs,
    RandomDistributions,
    ToyTree,
    assert_lossless,
    enumerate_traces,
    exact_distribution,
    g_test,
)
from treespec.tree import IID, WITHOUT_REPLACEMENT
from treespec.verification import RULES

SCHEMES = [WITHOUT_REPLACEMENT, IID]
RANKINGS = [ACCEPTANCE, VISIT]


def without(probs, drawn):
    probs = probs.copy()
    probs[list(drawn)] = 0 * probs[0]
    return probs / probs.sum() if probs.sum() > 0 else 0 * probs


def accepted(rest, rank):
    gain = Fraction(str(SAMPLING_GAIN)) ** (rank + 1)
    return [gain + (1 - gain) * prob for prob in rest]


def read_values(probs, drawn, children, ranking):
    """By plain loops: the value of the draw after the tokens `drawn`, and of every token that it may give, the parent's
    being 1."""

    def rest(rank):
        return probs if children == IID else without(probs, drawn[:rank])

    reached = 1
    for rank, token in enumerate(drawn):
        reached *= 1 - (rest(rank)[token] if ranking == VISIT else accepted(rest(rank), rank)[token])
    if ranking == VISIT:
        return reached, [reached * prob for prob in rest(len(drawn))]
    chances = accepted(rest(len(drawn)), len(drawn))
    return reached * sum(rest(len(drawn)) * chances), [reached * chance for chance in chances]


def drawn_children(distribution, tokens):
    """Children of one node, drawn from `distribution` [V]."""
    probs, squares = distribution[tokens], np.square(distribution).sum(keepdims=True)
    return Children(tokens[None, None], probs[None, None], probs[None, None] > 0, squares=squares[None, None])


@given(st.integers(0, 500), st.integers(1, 6), st.integers(1, 5), st.sampled_from(SCHEMES), st.sampled_from(RANKINGS))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_values_are_those_of_plain_loops(seed, vocab_size, k, children, ranking):
    rng = np.random.default_rng(seed)
    distribution = rng.dirichlet(np.full(vocab_size, rng.choice([0.1, 1.0])))
    k = k if children == IID else min(k, vocab_size)
    drawn = rng.choice(vocab_size, k, replace=children == IID).tolist()
    values = draw_values(drawn_children(distribution, np.array(drawn)), children, ranking)
    for rank, token in enumerate(drawn):
        if children != IID and 1 - distribution[drawn[:rank]].sum() < 1e-6:
            break
        probs_ = distribution.astype(object)
        draw, nodes = read_values(probs_, drawn[:rank], children, ranking)
        least = min(float(read_values(probs_, drawn[:r], children, ranking)[0]) for r in range(rank + 1))
        assert values.draws[0, 0, rank] == pytest.approx(least if ranking == VISIT else float(draw), abs=1e-6)
        assert values.nodes[0, 0, rank] == pytest.approx(float(nodes[token]), abs=1e-6)


def test_a_draws_value_does_not_depend_on_its_token():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    for children in SCHEMES:
        for ranking in RANKINGS:
            draws = []
            for last in (2, 3):
                chosen = drawn_children(probs, np.array([1, last]))
                draws.append(draw_values(chosen, children, ranking).draws)
            assert np.array_equal(*draws)


def test_no_distribution_gives_nan():
    """Distributions whose mass is gone after the first draw, of float32 noise, or not of sum one."""
    for distribution in ([1.0, 0.0, 0.0], [1 - 1e-8, 1e-8, 1e-30], [0.9999999, 1e-7, 1e-7], [0.0, 0.0, 0.0]):
        chosen = drawn_children(np.array(distribution, np.float32), np.arange(3))
        for children in SCHEMES:
            for ranking in RANKINGS:
                values = draw_values(chosen, children, ranking)
                assert all(0 <= value <= 1 for part in values for value in part.flatten().tolist())


@dataclass
class HeapDrafter:
    """Makes the best draw, one after another, as the heap of `BestFirst` would.

    `num_dropped` is the planted bug: so many nodes of the least value of their own are dropped in the end.
    """

    draft: ConditionalProbs
    budget: int
    children: str
    ranking: str
    max_depth: int = 2
    num_dropped: int = 0

    def __call__(self, rng: Any) -> ToyTree:
        tree = ToyTree(is_width_fixed=False)
        value, rank, key = {0: 1}, {0: 1}, {0: ()}
        while tree.num_nodes <= self.budget and (draws := self.draws(tree, value, rank, key)):
            node_key, node, probs, nodes = min(draws, key=lambda draw: draw[0])
            token = rng.pick(tree.num_nodes, probs)
            child = tree.num_nodes
            value[child], rank[child], key[child] = value[node] * nodes[token], -node_key[0], node_key
            tree.add(node, token, probs, self.draft(tree.contexts[node]))
        for _ in range(self.num_dropped):
            leaf = min((i for i in range(1, tree.num_nodes) if not tree.children(i)), key=lambda i: (value[i], -i))
            tree, value = drop(tree, leaf), {i - (i > leaf): v for i, v in value.items() if i != leaf}
        return tree

    def draws(self, tree: ToyTree, value: Any, rank: Any, key: Any) -> list[Any]:
        """(key, node, distribution, values of the tokens); of equal draws the higher level first, then the
        better parent's."""
        found = []
        for node in range(tree.num_nodes):
            drawn = [tree.token(child) for child in tree.children(node)]
            base = self.draft(tree.contexts[node])
            probs = base if self.children == IID else without(base, drawn)
            depth = len(tree.contexts[node])
            if depth < self.max_depth and probs.sum() > 0 and len(drawn) < self.budget:
                draw, nodes = read_values(base, drawn, self.children, self.ranking)
                above = min(rank[tree.children(node)[-1]] if drawn else rank[node], rank[node])
                capped = min(value[node] * draw, above)
                order = (-capped, depth, -min(value[node], rank[node]), key[node], len(drawn))
                found.append((order, node, probs, nodes))
        return found


def drop(tree: ToyTree, leaf: int) -> ToyTree:
    fewer = ToyTree(is_width_fixed=False)
    for node in range(1, tree.num_nodes):
        if node != leaf:
            parent = tree.parents[node]
            fewer.add(
                parent - (parent > leaf), tree.token(node), tree.draft_probs_of(node), tree.base_distributions[node]
            )
    return fewer


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("budget", [2, pytest.param(4, marks=pytest.mark.slow), 6])
def test_best_first_has_the_distribution_of_the_heap(budget, ranking):
    num_rows = 12_000
    source = TableSource([1] * num_rows, TableLM(3, seed=5, scale=1.2), dtype=torch.float64)
    policy = dyspec(budget + 1) if ranking == VISIT else BestFirst(budget + 1)
    batch = policy.grow(source, 3)
    heap = HeapDrafter(lambda path: source.probs((1, *path)).numpy(), budget, WITHOUT_REPLACEMENT, ranking, 3)
    probs: dict[Any, float] = defaultdict(float)
    for weight, tree in enumerate_traces(heap):
        contexts = [(1, *context) for context in tree.contexts]
        drawn = {contexts[n]: tuple(tree.token(c) for c in tree.children(n)) for n in range(tree.num_nodes)}
        probs[frozenset((path, tokens) for path, tokens in drawn.items() if tokens)] += float(weight)
    assert sum(probs.values()) == pytest.approx(1)
    assert len(probs) > 3
    assert g_test(Counter(map(drawn_tree, batch.trees)), probs) > 1e-3
    assert not batch.is_width_fixed


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("children", SCHEMES)
@pytest.mark.parametrize("seed", range(3))
def test_the_heap_is_exactly_lossless(seed, children, ranking, rule):
    """In rational arithmetic: the error is 0."""
    draft, target = (RandomDistributions(3, seed=s, is_exact=True) for s in (seed, seed + 50))
    assert_lossless(RULES[rule], HeapDrafter(draft, 3, children, ranking), target)


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_a_larger_heap_is_lossless(rule):
    draft, target = RandomDistributions(3, seed=7), RandomDistributions(3, seed=8)
    assert_lossless(RULES[rule], HeapDrafter(draft, 5, WITHOUT_REPLACEMENT, ACCEPTANCE, 3), target)


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_dropping_by_a_nodes_own_value_is_caught(rule):
    draft, target = RandomDistributions(3, seed=7), RandomDistributions(3, seed=8)
    heap = HeapDrafter(draft, 3, WITHOUT_REPLACEMENT, ACCEPTANCE, num_dropped=1)
    assert exact_distribution(RULES[rule], heap, target).total_variation > 0.005


def test_ranked_by_acceptance_flat_distributions_give_deeper_trees():
    """Ranked by visits most nodes hang off the root."""
    depths = []
    for policy in (BestFirst(8), dyspec(8)):
        batch = policy.grow(TableSource([0] * 100, TableLM(12, seed=3, scale=0.5), dtype=torch.float64), 8)
        depths.append(float(batch.depths.max(1).values.double().mean()))
    assert depths[0] > depths[1] + 1
