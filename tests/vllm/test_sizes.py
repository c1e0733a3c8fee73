"""How many nodes are verified, on made-up times."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from treespec import TreeBatch
from treespec.vllm.sizes import FIRST_WAIT, PassModel, TreeSizes


def trees(values: list[list[float]]) -> TreeBatch:
    """Chains with these values below their roots."""
    width = len(values[0]) + 1
    tokens = torch.arange(width).expand(len(values), width).contiguous()
    parents = torch.arange(-1, width - 1).expand(len(values), width).contiguous()
    return TreeBatch(tokens, parents, values=torch.tensor([[1.0, *row] for row in values]))


def learned(start: float, request: float, token: float) -> TreeSizes:
    """Sizes that have seen steps of these times."""
    sizes, rng = TreeSizes(), np.random.default_rng(0)
    for _ in range(200):
        requests = int(rng.integers(1, 9))
        tokens = requests + int(rng.integers(0, 64))
        sizes.observe(requests, tokens, 0, start + request * requests + token * tokens, 0.0)
    sizes._steps = 1
    return sizes


@pytest.mark.parametrize("coefficients", [(50.0, 1.0, 0.5), (5.0, 0.0, 5.0), (20.0, 3.0, 0.0)])
def test_times_are_learned(coefficients: tuple[float, float, float]) -> None:
    model, rng = PassModel(), np.random.default_rng(1)
    for _ in range(300):
        requests = int(rng.integers(1, 17))
        tokens = requests + int(rng.integers(0, 128))
        model.observe(requests, tokens, float(np.array(coefficients) @ [1, requests, tokens]))
    for requests, tokens in ((1, 1), (1, 16), (8, 64), (16, 144)):
        expected = float(np.array(coefficients) @ [1, requests, tokens])
        assert float(model.predict(requests, np.array([tokens]))[0]) == pytest.approx(expected, rel=0.1)


def test_free_tokens_are_all_verified_and_expensive_ones_are_not() -> None:
    batch = trees([[0.9, 0.5, 0.2], [0.4, 0.2, 0.1]])
    assert learned(50, 0, 0.01).cut(batch).num_nodes.tolist() == [4, 4]
    assert learned(1, 0, 20).cut(batch).num_nodes.tolist() == [1, 1]


def test_the_most_valuable_nodes_stay_whosever_they_are() -> None:
    kept = learned(20, 0, 6).cut(trees([[0.9, 0.8, 0.7], [0.05, 0.04, 0.03]]))
    assert kept.num_nodes.tolist() == [4, 1]


def test_values_that_rise_along_a_path_keep_it_whole() -> None:
    kept = learned(20, 0, 3).cut(trees([[0.3, 0.9, 0.9]]))
    assert kept.trees[0].parent_list == list(range(-1, kept.trees[0].num_nodes - 1))


def test_what_time_is_worth_is_counted_in_the_drafts_values() -> None:
    sizes, batch = learned(50, 0, 0.01), trees([[0.5, 0.5], [0.5, 0.5]])
    sizes.cut(batch)
    assert sizes.value_per_ms == pytest.approx(2 / 50, rel=0.02)  # Two tokens per request and step.
    sizes._hits = 2 * sizes._predicted
    sizes.cut(batch)
    assert sizes.value_per_ms == pytest.approx(3 / 50 / 2, rel=0.02)


def test_drafting_stops_while_it_does_not_pay() -> None:
    sizes = learned(1, 0, 20)
    sizes.cut(trees([[0.5, 0.2, 0.1]]))
    assert [sizes.wants_draft() for _ in range(FIRST_WAIT)] == [False] * (FIRST_WAIT - 1) + [True]


def test_sampled_trees_are_left_alone() -> None:
    batch = TreeBatch(torch.tensor([[0, 1]]), torch.tensor([[-1, 0]]), torch.full((1, 2), 0.5), torch.tensor([[-1, 0]]))
    assert learned(1, 0, 20).cut(batch) is batch
