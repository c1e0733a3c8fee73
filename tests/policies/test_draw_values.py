"""Draw values of sampled children: against plain formulas, the heap that they stand for, and exactly lossless."""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers.grown_trees import all_trees
from helpers.toy_models import TableLM, TableSource
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.literature import dyspec
from treespec.policies import BestFirst
from treespec.policies.children import Children
from treespec.policies.draw_values import ACCEPTANCE, CERTAINTY, FIRST_ACCEPTED, LATER_ACCEPTED, VISIT, draw_values
from treespec.testing import ConditionalProbs, ToyTree, enumerate_traces
from treespec.tree import IID, WITHOUT_REPLACEMENT

SCHEMES = [WITHOUT_REPLACEMENT, IID]
RANKINGS = [ACCEPTANCE, VISIT]


def without(probs, drawn):
    probs = probs.copy()
    probs[list(drawn)] = 0 * probs[0]
    return probs / probs.sum() if probs.sum() > 0 else 0 * probs


def accepted(rest, rank):
    first, later, certainty = map(Fraction, map(str, (FIRST_ACCEPTED, LATER_ACCEPTED, CERTAINTY)))
    return [(later / rank if rank else first) * (1 + certainty * prob) for prob in rest]


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
@settings(max_examples=100, deadline=None, derandomize=True)
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


def test_no_distribution_gives_nan():
    """Distributions whose mass is gone after the first draw, of float32 noise, or not of sum one."""
    distributions = [1.0, 0.0, 0.0], [1 - 1e-8, 1e-8, 1e-30], [0.9999999, 1e-7, 1e-7], [0.0, 0.0, 0.0]
    for distribution, children, ranking in product(distributions, SCHEMES, RANKINGS):
        values = draw_values(drawn_children(np.array(distribution, np.float32), np.arange(3)), children, ranking)
        assert all(0 <= value <= 1 for part in values for value in part.flatten().tolist())


@dataclass
class HeapDrafter:
    """Makes the best draw, one after another, as the heap that `BestFirst` stands for would."""

    draft: ConditionalProbs
    budget: int
    children: str
    ranking: str
    max_depth: int

    def __call__(self, rng: Any) -> ToyTree:
        tree = ToyTree(is_width_fixed=False)
        value, rank, key = {0: 1}, {0: 1}, {0: ()}
        while tree.num_nodes <= self.budget and (draws := self.draws(tree, value, rank, key)):
            node_key, node, probs, nodes = min(draws, key=lambda draw: draw[0])
            token = rng.pick(tree.num_nodes, probs)
            child = tree.num_nodes
            value[child], rank[child], key[child] = value[node] * nodes[token], -node_key[0], node_key
            tree.add(node, token, probs, self.draft(tree.contexts[node]))
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


def drawn_tree(tree):
    """The children's tokens by the text before them, however the nodes are numbered."""
    drawn = ((tree.contexts[node], tuple(map(tree.token, tree.children(node)))) for node in range(tree.num_nodes))
    return frozenset((context, tokens) for context, tokens in drawn if tokens)


@pytest.mark.parametrize("ranking", RANKINGS)
def test_best_first_has_the_distribution_of_the_heap(ranking):
    """That it decodes losslessly: tests/policies/test_lossless.py."""
    budget, model = 3, TableLM(3, seed=5, scale=1.2)
    source = TableSource([1], model, dtype=torch.float64)
    policy = dyspec(budget + 1) if ranking == VISIT else BestFirst(budget + 1)
    heap = HeapDrafter(lambda path: source.probs((1, *path)).numpy(), budget, WITHOUT_REPLACEMENT, ranking, 3)
    found, expected = defaultdict(float), defaultdict(float)
    for probs, trees in (
        (found, zip(*all_trees(policy, model, 3, root=1), strict=True)),
        (expected, enumerate_traces(heap)),
    ):
        for weight, tree in trees:
            probs[drawn_tree(tree)] += float(weight)
    assert len(expected) > 3
    assert found == pytest.approx(expected, abs=1e-12)
