"""Edges of single decisions, and that nothing is asked for in vain; fuzzed logits are in test_fuzz.py."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from helpers.toys import verify_rows
from torch import Tensor

from treespec.errors import InvalidTreeError, LogitsError, RuleMismatchError
from treespec.testing import ToyTree
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.verification import RULES, ArgmaxSource, GivenUniforms, verify
from treespec.verification.dense.forms import verify_dense
from treespec.verification.walks import likelihood_ratio, residual_weights


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", RULES)
def test_nan_that_reaches_a_decision_of_the_walk_raises(name: str, width: int) -> None:
    """The engine and `verify` check distributions beforehand; a rule called by hand must not let NaN decide either."""
    probs, tokens = torch.full((1, 3), 1 / 3), [0, 1, 2][: width + 1]
    tree = TokenTree(
        torch.tensor(tokens), torch.tensor([-1, 0, 0][: width + 1]), probs, torch.tensor([-1, 0, 0])[: width + 1]
    )
    if RULES[name].reason_against(TreeBatch.from_trees([tree])) is not None:
        return
    rows = [[math.nan] * 3, [0.5, math.nan, 0.5], [math.nan, 0.0, 0.5]]
    rows += [[math.inf, 0.0, 0.0], [0.0, 0.0, 0.0]] * RULES[name].is_lossless
    for row, coin in product(rows, (0.05, 0.5, 0.9)):
        with pytest.raises(LogitsError):
            RULES[name].verify(tree, lambda node, row=row: torch.tensor(row), GivenUniforms([coin] * 3, [0.5] * 3))


@pytest.mark.parametrize("name", ["block", "traversal", "transport_traversal"])
def test_nan_of_an_inner_node_decides_nothing(name: str) -> None:
    """It is not taken for a node that has nothing left, which would be rejected in silence."""
    draft_distributions = torch.tensor([[0.5, 0.25, 0.25]]).repeat(2, 1)
    target_distributions = torch.tensor([[0.9, 0.05, 0.05], [0.1, math.nan, 0.5], [1.0, 0.0, 0.0]])
    tree = TokenTree.chain([9, 0, 0], draft_distributions)
    with pytest.raises(LogitsError):
        RULES[name].verify(tree, target_distributions.__getitem__, GivenUniforms([0.99] * 3, [0.5] * 3))


@pytest.mark.parametrize("name", ["block", "traversal", "transport_traversal", "recursive", "optimal_transport"])
def test_chains_deeper_than_the_recursion_limit(name: str) -> None:
    depth = 1500
    tree = TokenTree.chain([0] * (depth + 1), torch.full((depth, 2), 0.5))
    verdict = RULES[name].verify(
        tree, torch.full((depth + 1, 2), 0.5).__getitem__, GivenUniforms([0.5] * (depth + 1), [0.5] * (depth + 1))
    )
    assert verdict.num_accepted == depth


@pytest.mark.parametrize("vocab_size", [3, 5000])
@pytest.mark.parametrize("name", ["recursive", "traversal", "token", "block"])
def test_zero_residual_mass_falls_back_to_the_distribution_before(name: str, vocab_size: int) -> None:
    """The target lies below the draft everywhere, by rounding: a rejection leaves nothing."""
    draft = torch.rand(vocab_size, generator=torch.Generator().manual_seed(0)).softmax(-1)
    target_probs = (draft * (1 - 1e-6)).expand(3, -1)
    assert (target_probs[0] <= draft).all()
    tree = TokenTree.chain([0, 1, 2], torch.stack([draft, draft]))
    coins, draws = torch.full((3,), 1 - 2**-53, dtype=torch.float64), torch.full((3,), 0.5, dtype=torch.float64)
    verdict = verify(tree, target_probs, name, coins=coins, draws=draws)
    median = int((draft.double().cumsum(0) > draft.double().sum() / 2).nonzero()[0])
    assert verdict == Verdict((0,), median, is_bonus=False)
    batch = (TreeBatch.from_trees([tree]), target_probs[None], coins[None], draws[None])
    assert verify_dense(RULES[name], *batch) == [verdict] == verify_rows(RULES[name], *batch)


@pytest.mark.parametrize("name", ["recursive", "traversal"])
def test_one_over_a_residual_may_be_beyond_float32(name: str) -> None:
    """Such tails come from low temperatures; with a coin near one both siblings are rejected."""
    probs = torch.tensor([1 - 2**-24, 0.0, 1e-40]).repeat(3, 1)
    tree = TokenTree(torch.tensor([9, 0, 1]), torch.tensor([-1, 0, 0]))
    coins, draws = torch.full((3,), 1 - 2**-30, dtype=torch.float64), torch.full((3,), 0.5, dtype=torch.float64)
    verdict = verify(tree, probs, name, coins=coins, draws=draws)
    batch = (TreeBatch.from_trees([tree]), probs[None], coins[None], draws[None])
    assert verify_dense(RULES[name], *batch) == [verdict] == verify_rows(RULES[name], *batch)
    assert verdict == Verdict((0,), 2, is_bonus=False)


@pytest.mark.parametrize("name", ["recursive", "traversal", "token", "block"])
def test_coins_are_strict(name: str) -> None:
    """Probability zero never happens, not even at coin 0; probability one always does, and the root has no coin."""
    probs = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    rng = GivenUniforms([math.nan, 0.0], [0.0, 0.0])
    impossible = RULES[name].verify(TokenTree.chain([9, 1], probs[:1]), lambda node: torch.eye(3)[0], rng)
    assert impossible == Verdict((0,), 0, is_bonus=False)
    sure = RULES[name].verify(
        TokenTree.chain([9, 1], probs[:1]),
        lambda node: torch.eye(3)[1],
        GivenUniforms([math.nan, 1 - 2**-53], [0.0, 0.0]),
    )
    assert sure == Verdict((0, 1), 1, is_bonus=True)


@pytest.mark.parametrize("name", ["recursive", "traversal", "token", "block"])
def test_a_drawn_token_of_probability_zero_raises(name: str) -> None:
    tree = ToyTree()
    probs = np.array([0.5, 0.5, 0.0])
    tree.add(0, 2, probs, probs)
    with pytest.raises(InvalidTreeError, match="token 2 was drafted"):
        RULES[name].verify(tree, lambda node: np.full(3, 1 / 3), GivenUniforms([0.5, 0.5], [0.5, 0.5]))


class AskedNodes:
    """A target distribution that remembers for which nodes it was asked."""

    def __init__(self, target_probs: Tensor) -> None:
        self.target_probs = target_probs
        self.nodes: set[int] = set()

    def __call__(self, node: int) -> Tensor:
        self.nodes.add(node)
        return self.target_probs[node]


def two_branches() -> TokenTree:
    """Root 0; children 1 (token 0) and 2 (token 1); 3 below 1, 4 below 3, 5 below 2."""
    probs = torch.tensor([[0.5, 0.5, 0.0]])
    return TokenTree(
        torch.tensor([9, 0, 1, 0, 1, 0]), torch.tensor([-1, 0, 0, 1, 3, 2]), probs, torch.tensor([-1, 0, 0, 0, 0, 0])
    )


@pytest.mark.parametrize("name", ["target_walk", "recursive", "traversal"])
def test_only_the_nodes_that_matter_are_asked_for(name: str) -> None:
    """By traversal nothing below node 1, which is entered with mass zero; leaf 5 is not accepted."""
    target_probs = torch.full((6, 3), 1 / 3)
    target_probs[0] = torch.tensor([0.0, 1.0, 0.0])
    target_probs[2] = torch.tensor([0.0, 0.0, 1.0])
    probs = AskedNodes(target_probs)
    verdict = RULES[name].verify(two_branches(), probs, GivenUniforms([0.5] * 6, [0.5] * 6))
    assert verdict == Verdict((0, 2), 2, is_bonus=False)
    assert probs.nodes == {0, 2}


@pytest.mark.parametrize("name", ["block", "traversal"])
def test_nothing_below_mass_zero_is_asked_for(name: str) -> None:
    probs = AskedNodes(torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    tree = TokenTree.chain([9, 0, 0, 0], torch.full((3, 3), 1 / 3))
    assert RULES[name].verify(tree, probs, GivenUniforms([0.0] * 4, [0.0] * 4)) == Verdict((0,), 1, is_bonus=False)
    assert probs.nodes == {0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_greedy_source_takes_the_first_of_equal_scores_and_has_no_coins(dtype: torch.dtype) -> None:
    rng = ArgmaxSource()
    assert rng.pick(0, torch.tensor([-math.inf, 2.0, 1.0, 2.0], dtype=dtype)) == 1
    assert rng.pick(0, torch.zeros(3, dtype=dtype, requires_grad=True)) == 0
    with pytest.raises(RuleMismatchError, match="target walk"):
        rng.flip(0, 0.5)


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_steps_change_no_argument(make) -> None:
    probs, draft = make([0.5, 0.25, 0.25]), make([0.2, 0.8, 0.0])
    assert float(likelihood_ratio(probs, draft, 0)) == pytest.approx(2.5)
    assert float(likelihood_ratio(probs, None, 1)) == 0.25
    assert residual_weights(probs, None, 0).tolist() == [0.0, 0.25, 0.25]
    assert residual_weights(probs, draft, 0).tolist() == pytest.approx([0.3, 0.0, 0.25])
    assert probs.tolist() == [0.5, 0.25, 0.25]


def test_the_random_source_draws_from_distributions_only() -> None:
    for weights in ([0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]):
        with pytest.raises(LogitsError, match="after node 1"):
            GivenUniforms([0.5, 0.5], [0.5, 0.5]).pick(1, torch.tensor(weights))


def test_the_random_source_reads_tensors_lists_and_arrays_and_flips_no_nan() -> None:
    for coins in ([0.25, 0.75], torch.tensor([0.25, 0.75]), np.array([0.25, 0.75])):
        rng = GivenUniforms(coins, coins)
        with pytest.raises(LogitsError, match="node 1 is NaN"):
            rng.flip(1, math.nan)
        assert [rng.flip(node, 0.5) for node in (0, 1)] == [True, False]
        assert [rng.pick(node, np.array([0.5, 0.5])) for node in (0, 1)] == [0, 1]
        assert [rng.pick(node, torch.tensor([2.0, 0.0, 2.0])) for node in (0, 1)] == [0, 2]
