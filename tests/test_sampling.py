"""Draws from given uniforms at their edges, and drawn sequences against their exact distributions."""

import itertools
import math
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers.accelerator.device import DeviceTensor, PretendAccelerator
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from treespec.sampling import (
    draw_independent,
    draw_on_host,
    inverse_cdf,
    normalise,
    race,
    race_of_blocks,
)
from treespec.testing import g_test
from treespec.tree.transfer import download

ALMOST_ONE = 1 - 2**-53
SIGNIFICANCE = 1e-6  # Seeds are fixed: a failure is a bug, and a bias of a hundredth would fail by far.


def pick(weights: list[float] | torch.Tensor, uniform: float) -> int:
    return int(inverse_cdf(torch.as_tensor(weights), torch.tensor(uniform, dtype=torch.float64)))


def test_zero_mass_is_never_returned() -> None:
    for uniform, scale in itertools.product((0.0, 0.1, 0.5, 0.9, ALMOST_ONE, 1.0), (1.0, 1e-30, 5e-324, 1e300)):
        weights = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64) * scale
        assert pick(weights, uniform) in (1, 4)
        assert [pick(some, uniform) for some in ([0.0, 0.0, 2.0], [2.0, 0.0, 0.0], [1.0])] == [2, 0, 0]


def test_boundaries_belong_to_the_next_token() -> None:
    weights = [0.25, 0.25, 0.0, 0.5]
    expected = {0.0: 0, 0.25 - 2**-54: 0, 0.25: 1, 0.5 - 2**-54: 1, 0.5: 3, ALMOST_ONE: 3}
    assert {uniform: pick(weights, uniform) for uniform in expected} == expected


def test_the_uniform_is_scaled_by_the_sum() -> None:
    """Distributions that sum to a little less, or to anything else, lose no token's share."""
    for scale in (0.9, 1 - 1e-5, 3.0, 1e-6):
        weights = torch.tensor([0.5, 0.5], dtype=torch.float64) * scale
        assert [pick(weights, u) for u in (0.0, 0.4999, 0.5001, ALMOST_ONE)] == [0, 0, 1, 1]


def test_a_float32_distribution_over_a_large_vocabulary_ends_at_its_last_token_with_mass() -> None:
    logits = torch.randn(49_152, generator=torch.Generator().manual_seed(0))
    probs = logits.softmax(-1)
    probs[-100:] = 0
    assert pick(probs, ALMOST_ONE) == 49_152 - 101
    middle = pick(probs, 0.5)
    exact = probs.numpy().astype(np.longdouble)
    assert exact[:middle].sum() <= exact.sum() / 2 < exact[: middle + 1].sum()


@seed(0)
@settings(max_examples=200, deadline=None, database=None)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8).filter(lambda weights: sum(weights) > 0),
    st.floats(0, ALMOST_ONE),
)
def test_equals_a_plain_loop(weights: list[float], uniform: float) -> None:
    goal, total, expected = uniform * math.fsum(weights), 0.0, None
    for token, weight in enumerate(weights):
        total += weight
        if total > goal and expected is None:
            expected = token
    if expected is None:
        expected = max(token for token, weight in enumerate(weights) if weight > 0)
    cdf = np.cumsum(weights)
    is_near_a_boundary = bool((np.abs(cdf - goal) <= 4e-16 * cdf[-1]).any())
    token = pick(torch.tensor(weights, dtype=torch.float32), uniform)
    assert weights[token] > 0
    assert token == expected or is_near_a_boundary


class RaggedSums(TorchDispatchMode):
    """Cumulative sums of the pretended device that are off by so many ulps of one, as those of a parallel scan."""

    def __init__(self, errors: list[int]) -> None:
        super().__init__()
        self.errors = torch.tensor(errors) * 2.0**-52

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.cumsum.default:
            out.inner += self.errors[: out.shape[-1]]
        return out


RAGGED = {0: [0, 4, 0, 0, 0, 0], 1: [0] * 6, 2: [0, 0, 0, 4, 0, 0], 3: [0, 0, 0, 0, -4, 0]}
"""By case: a rise before the tokens with mass, none, one between them, and a dip at the last."""


@pytest.mark.parametrize("case", RAGGED)
def test_tokens_without_mass_are_drawn_again(case: int) -> None:
    """On a device: the goals lie on the edges, where a sum that is off by a few ulps finds its neighbour."""
    weights = torch.tensor([0.0, 0.0, 0.5, 0.0, 0.5, 0.0])
    uniform = torch.tensor([[0.0, 2**-53, 0.25], [0.5, 0.75, ALMOST_ONE]], dtype=torch.float64)
    with PretendAccelerator() as device:
        on_device = DeviceTensor(weights.expand(2, 3, 6).contiguous())
        with RaggedSums(RAGGED[case]):
            tokens, extra = draw_on_host(on_device, uniform, DeviceTensor(weights))
        num_reads = sum(device.reads.values())
    assert extra.equal(weights)
    assert tokens.tolist() == [[2, 2, 2], [4, 4, 4]]
    assert num_reads == (1 if case == 1 else 2)


def test_draws_on_the_host_are_those_of_the_inverse_cdf() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(50, 4, 9, generator=generator) * (torch.rand(50, 4, 9, generator=generator) < 0.5)
    weights[..., 3] += 0.01
    uniform = torch.rand(50, 4, dtype=torch.float64, generator=generator)
    expected = inverse_cdf(weights, uniform)
    assert draw_on_host(weights, uniform)[0].equal(expected)
    with PretendAccelerator() as device:
        assert draw_on_host(DeviceTensor(weights), uniform)[0].equal(expected)
        assert sum(device.reads.values()) == 1
        assert sum(device.launches.values()) <= 8
        nothing = draw_on_host(DeviceTensor(torch.full((2, 9), torch.nan)), uniform[0, :2])[0]
    assert ((nothing >= 0) & (nothing < 9)).all()


def test_a_clock_whose_uniform_is_zero_rings() -> None:
    """Else a draw from a point mass could return a token without mass."""
    probs = torch.zeros(2, 1500)
    probs[:, 700] = 1
    with patch.object(torch, "rand", lambda size, **_: torch.zeros(size, dtype=torch.float64)):
        for some in (probs, probs[:, 600:800]):
            tokens = draw_independent(some, 1, torch.Generator())
            assert some.gather(-1, tokens).tolist() == [[1.0], [1.0]]


def counted(draws: torch.Tensor) -> dict[tuple[int, ...], int]:
    outcomes, numbers = draws.unique(dim=0, return_counts=True)
    return dict(zip((tuple(row) for row in outcomes.tolist()), numbers.tolist(), strict=True))


DISTRIBUTION = [0.4, 0.3, 0.2, 0.1]
NUM_DRAWS = 100_000


def without_replacement_probs(probs: list[float], k: int) -> dict[tuple[int, ...], float]:
    """The distribution of ordered draws from the renormalised rest, by the definition."""
    exact = {}
    for outcome in itertools.permutations(range(len(probs)), k):
        prob, left = 1.0, 1.0
        for token in outcome:
            prob *= probs[token] / left
            left -= probs[token]
        exact[outcome] = prob
    return exact


def test_draws_by_blocks_have_their_exact_ordered_distribution() -> None:
    """Blocks without mass, with one token of mass and with several; the last is filled up."""
    weights = [0.0, 0.0, 0.0, 0.4, 0.3, 0.2, 0.0, 0.0, 0.1]
    probs = torch.tensor(weights).expand(NUM_DRAWS, -1)
    tokens, speeds = race_of_blocks(probs, 2, 2, torch.Generator().manual_seed(0))
    exact = {outcome: prob for outcome, prob in without_replacement_probs(weights, 2).items() if prob > 0}
    assert g_test(counted(tokens), exact) > SIGNIFICANCE
    # The first arrival has the rate of all tokens together, and the second that of those left, one sum after another.
    times = 1 / speeds
    waits = torch.stack([times[:, 0], (times[:, 1] - times[:, 0]) * (1 - torch.tensor(weights)[tokens[:, 0]])])
    assert all(stats.kstest(wait.numpy(), "expon").pvalue > SIGNIFICANCE for wait in waits)


def test_large_vocabularies_are_drawn_from_by_blocks() -> None:
    probs = torch.zeros(20_000, 1500)
    probs[:, [3, 700, 701, 1499]] = torch.tensor(DISTRIBUTION)
    tokens, speeds = race(probs, 3, torch.Generator().manual_seed(0))
    assert bool((speeds > 0).all())
    names = {3: 0, 700: 1, 701: 2, 1499: 3}
    outcomes = {tuple(names[token] for token in outcome): count for outcome, count in counted(tokens).items()}
    assert g_test(outcomes, without_replacement_probs(DISTRIBUTION, 3)) > SIGNIFICANCE
    tokens, speeds = race(probs[:5], 6, torch.Generator().manual_seed(0))
    assert (speeds > 0).sum(-1).tolist() == [4] * 5
    assert all(len(set(row)) == 6 for row in tokens.tolist())


@pytest.mark.parametrize(("k", "is_on_device"), [(1, False), (3, False), (3, True)])
def test_races_have_their_exact_ordered_distribution(k: int, is_on_device: bool) -> None:
    probs = torch.tensor(DISTRIBUTION).expand(NUM_DRAWS, -1)
    with PretendAccelerator() if is_on_device else nullcontext():
        tokens, speeds = download(
            *race(DeviceTensor(probs) if is_on_device else probs, k, torch.Generator().manual_seed(k))
        )
    exact = without_replacement_probs(DISTRIBUTION, k)
    assert tokens.shape == (NUM_DRAWS, k)
    assert bool((speeds > 0).all())
    assert g_test(counted(tokens), exact) > SIGNIFICANCE
    if k > 1:  # The test can fail: draws in ascending order of token are another distribution.
        biased = dict.fromkeys(exact, 0) | counted(tokens.sort(dim=1).values)
        assert g_test(biased, exact) < SIGNIFICANCE
    assert stats.kstest((1 / speeds[:, 0]).numpy(), "expon").pvalue > SIGNIFICANCE


def test_independent_draws_are_a_product_distribution_without_zero_mass() -> None:
    tokens = draw_independent(torch.tensor(DISTRIBUTION).expand(NUM_DRAWS, -1), 2, torch.Generator().manual_seed(2))
    pairs = itertools.product(range(4), repeat=2)
    assert g_test(counted(tokens), {(a, b): DISTRIBUTION[a] * DISTRIBUTION[b] for a, b in pairs}) > SIGNIFICANCE
    tokens = draw_independent(torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]), 50, torch.Generator().manual_seed(0))
    assert [row.unique().tolist() for row in tokens] == [[1], [0, 2]]
    assert tokens.shape == (2, 50)


def test_a_distribution_with_too_few_tokens_is_drawn_empty() -> None:
    probs = torch.tensor([[0.0, 0.7, 0.0, 0.3], [0.0, 0.0, 1.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    tokens, speeds = race(probs, 3, torch.Generator().manual_seed(0))
    assert (speeds > 0).tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert set(tokens[0, :2].tolist()) == {1, 3}
    assert int(tokens[1, 0]) == 2
    tokens, speeds = race(probs, 9, torch.Generator().manual_seed(0))
    assert tokens.shape == speeds.shape == (3, 4)


def test_the_same_generator_state_gives_the_same_draws() -> None:
    probs = torch.rand(5, 50, generator=torch.Generator().manual_seed(0))
    for draw in (draw_independent, lambda *args: race(*args)[0]):
        first, second, third = (draw(probs, 4, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
        assert first.equal(second)
        assert not first.equal(third)


def test_normalise_never_divides_by_zero() -> None:
    weights = torch.tensor([[1.0, 3.0], [0.0, 0.0], [1e-38, 1e-38]])
    fallback = torch.tensor([[0.9, 0.1]] * 3)
    assert normalise(weights).tolist() == [[0.25, 0.75], [0.0, 0.0], [0.5, 0.5]]
    torch.testing.assert_close(normalise(weights, fallback)[1], fallback[1])
    assert normalise(weights, fallback)[0].tolist() == [0.25, 0.75]
