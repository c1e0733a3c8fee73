"""Optimal transport: the flow against networkx, and that no rule accepts more at a node."""

from fractions import Fraction

import networkx
import numpy as np
import pytest
import torch

from treespec.errors import RuleMismatchError
from treespec.literature import OptimalTransport, TransportTraversal
from treespec.literature.optimum import optimum_iid, optimum_without_replacement
from treespec.literature.transport import best_transport, pair_supply
from treespec.testing import (
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    assert_lossless,
)
from treespec.tree import IID, WITHOUT_REPLACEMENT, TokenTree, TreeBatch
from treespec.verification import resolve

RULES = [OptimalTransport(), TransportTraversal()]
SCHEMES = [IID, WITHOUT_REPLACEMENT]

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
    for _ in range(30):
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


def optimum(scheme, target, draft):
    probs = torch.tensor(target), torch.tensor(draft)
    return float(optimum_iid(*probs, 2)) if scheme == IID else optimum_without_replacement(*probs, 2).value


@by_scheme
def test_the_flow_is_optimal_at_the_widest_support(scheme):
    rng = np.random.default_rng(9)
    for _ in range(5):
        draft, target = rng.dirichlet(np.full(20, 0.5), size=2) + 1e-6
        draft, target = draft / draft.sum(), target / target.sum()
        accepted = best_transport(target.tolist(), pair_supply(draft.tolist(), scheme == WITHOUT_REPLACEMENT))
        assert sum(map(sum, accepted)) == pytest.approx(optimum(scheme, target, draft), abs=1e-10)


@by_rule
@by_scheme
def test_the_per_node_optimum_is_attained(rule, scheme):
    for seed in range(20):
        vocab = 2 + seed % 5
        target, draft = (RandomDistributions(vocab, seed + first, zero_share=0.2) for first in (0, 500))
        result = assert_lossless(rule, ToyDrafter(scheme, FixedShape.kary(2), (draft,)), target)
        assert result.mean_accepted == pytest.approx(optimum(scheme, target(()), draft(())), abs=1e-12)


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
