"""Sampled trees of every policy decode losslessly: all trees that it can grow, verified in every way.

Policies draw by `treespec.sampling`, whose draws have their exact distributions in tests/test_sampling.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from helpers.grown_trees import all_trees
from helpers.toy_models import TableLM, TableSource

from treespec.literature import LowConfidence, StochasticBeam, Truncated, delayed_branching, dyspec, opt_tree
from treespec.policies import BestFirst, Chain, KAry, Paths
from treespec.policies.best_first import best_nodes
from treespec.policies.draw_values import VISIT
from treespec.testing import assert_lossless, exact_distribution
from treespec.tree import IID, MIXED, WITHOUT_REPLACEMENT
from treespec.verification import RULES

DRAFT, TARGET = TableLM(3, seed=1, scale=1.0), TableLM(3, seed=2, scale=1.0)
BOTH, TRANSPORT = ("recursive", "traversal"), ("optimal_transport", "transport_traversal")
"""Both of the first two read every draft distribution of a tree, and either sees a wrong one."""

POLICIES = {
    "iid": (KAry((2, 2), IID), 2),
    "without replacement": (KAry((2, 2)), 2),
    "mixed": (KAry((2, 2), MIXED), 2),
    "paths": (Paths([(0,), (1,), (0, 0), (0, 1)]), 2),
    "delayed branching": (delayed_branching(1, (2,)), 2),
    "best-first": (BestFirst(4), 3),
    "best-first, beam": (BestFirst(6, beam=1), 2),
    "best-first, few expanded": (BestFirst(5, min_value=0.4), 3),
    "best-first, iid": (BestFirst(3, IID), 2),
    "best-first, few children": (BestFirst(6, WITHOUT_REPLACEMENT, branching=2), 2),
    "dyspec": (dyspec(5), 2),
    "dyspec, iid": (BestFirst(3, IID, ranking=VISIT), 2),
    "chain stopped by confidence": (Chain(3, stop=LowConfidence(0.5)), 3),
    "chain stopped by expected rejection": (Chain(3, stop=lambda probs: 1 - probs.prod(1) > 0.6), 3),
    "stochastic beam": (StochasticBeam(3, 2), 2),
}


def probs_of(model):
    source = TableSource([0], model, dtype=torch.float64)
    return lambda context: source.probs((0, *context)).numpy()


def drafter_of(policy, max_depth, draft=DRAFT):
    weights, trees = all_trees(policy, draft, max_depth)
    assert len(trees) > 1
    return lambda rng: trees[rng.pick(0, np.array(weights))]


@pytest.mark.parametrize("name", POLICIES)
def test_sampled_trees_decode_losslessly(name):
    policy, max_depth = POLICIES[name]
    drafter = drafter_of(policy, max_depth)
    for rule in BOTH:
        assert_lossless(RULES[rule], drafter, probs_of(TARGET))


@pytest.mark.parametrize("children", [IID, WITHOUT_REPLACEMENT])
def test_truncated_trees_decode_losslessly_by_transport_too(children):
    drafter = drafter_of(Truncated(KAry((2, 1), children), 2), 2)
    for rule in (*BOTH, *TRANSPORT):
        assert_lossless(RULES[rule], drafter, probs_of(TARGET))


@dataclass
class Kept:
    """A planted bug: a policy whose batches are cut down to what `keep` says."""

    policy: Any
    keep: Any

    def grow(self, source, max_depth):
        batch = self.policy.grow(source, max_depth)
        return batch.keep_nodes(self.keep(batch))


def the_best(num_nodes):
    def keep(batch):
        order = batch.values.argsort(dim=1, descending=True, stable=True)[:, :num_nodes]
        return torch.zeros_like(batch.tokens, dtype=torch.bool).scatter(1, order, True)

    return keep


def the_likely(batch):
    return torch.cat([batch.values[:, :1] > 0, batch.values[:, 1:] >= 0.35], 1)


BIASED = {
    # A kept second draw whose first was cut counts as drawn first: exactly what a careless rerank would store.
    "drawn nodes trimmed by their own probability": (Kept(KAry((2, 2)), the_best(3)), 2),
    "of a best-first tree the node of the least value dropped": (Kept(BestFirst(5), the_best(4)), 3),
    "the token of low confidence taken back": (Kept(Chain(1), the_likely), 1),
    "a beam cut by probability, not by arrival": (Kept(StochasticBeam(2, 1), the_best(2)), 1),
}


@pytest.mark.parametrize("name", BIASED)
def test_choosing_among_drawn_nodes_by_their_tokens_is_caught(name):
    policy, max_depth = BIASED[name]
    for rule in BOTH:
        assert exact_distribution(RULES[rule], drafter_of(policy, max_depth), probs_of(TARGET)).total_variation > 0.005


def test_stopping_sampled_trees_by_their_gain_is_caught():
    """The planted bug, which `BestFirst` refuses: below a sure first child another level pushes out its sibling, unless
    that one's token is so unlikely that the row stops."""
    draft, target = TableLM(3), TableLM(3)
    draft._table[:] = torch.tensor([0.2, 0.02, 0.78]).log()
    target._table[:] = torch.tensor([0.77, 0.23, 0.0]).log()
    policy = opt_tree(4, min_gain=0.65)
    policy.children, policy.ranking = WITHOUT_REPLACEMENT, VISIT
    found = exact_distribution(RULES["traversal"], drafter_of(policy, 3, draft), probs_of(target))
    assert found.total_variation > 0.005


class Relative(BestFirst):
    """A planted bug: a drawn node is expanded where a share of its value is above the least of the best."""

    def _frontier(self, builder, level, level_ranks, ranks):
        values = np.minimum(builder.take(builder.values, level), level_ranks)
        if ranks.shape[1] >= self.num_nodes:
            worst = np.partition(ranks, -self.num_nodes, axis=1)[:, -self.num_nodes, None]
            values = np.where(0.05 * values > worst, values, 0.0)
        return best_nodes(level, values, level.shape[1])


def test_expanding_by_a_share_of_other_nodes_is_caught_and_by_a_number_is_lossless():
    """Whether a draw is kept would depend on what is below it, and so on its token."""
    draft, target = TableLM(2, seed=18, scale=3.0), TableLM(2, seed=1018, scale=2.0)
    rule = RULES["traversal"]
    found = exact_distribution(rule, drafter_of(Relative(6, ranking=VISIT), 3, draft), probs_of(target))
    assert found.total_variation > 0.04
    for min_value in (0.05, 0.3):
        assert_lossless(rule, drafter_of(BestFirst(6, min_value=min_value), 3, draft), probs_of(target))
