"""Sampling on a GPU: every lossless rule keeps the distribution, dense forms decide as the walk on the CPU, seeds."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.gpu import DEVICE
from helpers.toys import as_batch, random_chain, random_drafted, verify_rows

from benchmarks.joint_distribution.cases import right_cases, tiny_models
from benchmarks.joint_distribution.heads import head_cases
from benchmarks.joint_distribution.run import run_case
from treespec import TokenRecycling, TreeSpeculation
from treespec.sampling import draw_independent, draw_on_host, inverse_cdf, race
from treespec.testing import enumerate_continuations, g_test, uncached
from treespec.verification import RULES
from treespec.verification.dense.forms import has_dense_form, verify_dense


@pytest.fixture(scope="module")
def small():
    return tiny_models(DEVICE)


@pytest.mark.parametrize("case", [*right_cases(), *head_cases()], ids=lambda case: case.name)
def test_the_joint_distribution_is_the_targets(case, small):
    """Three tokens, enumerated by uncached passes; rules on every kind of trees, with and without processors."""
    result = run_case(case, small, num_batches=1, num_rows=2000)
    assert result["p"] > 1e-4
    assert case.drafter is None or result["block_efficiency"] > 1.1 or case.trees == "merged tables"


def test_the_default_keeps_the_distribution(small):
    """`tree="auto"` measures this device; single rows, so that every step chooses again."""
    ids = torch.tensor([[5, 2, 7, 5]], device=DEVICE)
    exact = enumerate_continuations(uncached(small.target, ids[0]), 3).joint
    speculation = TreeSpeculation([small.draft, TokenRecycling()], seed=0)
    texts = small.target.generate(
        ids.repeat(2000, 1), max_new_tokens=3, do_sample=True, top_k=0, custom_generate=speculation
    )
    assert g_test(Counter(map(tuple, texts[:, 4:].tolist())), exact) > 1e-4


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if has_dense_form(rule)])
def test_dense_forms_decide_as_the_walk(name):
    """Coin for coin: distributions on the GPU, the reference on the CPU."""
    rng = np.random.default_rng(0)
    for vocab_size in (2, 5):
        kind = random_chain if name in ("token", "block") else random_drafted
        trees, probs = as_batch([kind(rng, vocab_size) for _ in range(300)])
        coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
        expected = verify_rows(RULES[name], trees, probs, coins, draws)
        there = trees if trees.draft_probs is None else moved(trees)
        assert verify_dense(RULES[name], there, probs.to(DEVICE), coins, draws) == expected


def moved(trees):
    return dataclasses.replace(trees, draft_probs=trees.draft_probs.to(DEVICE))


def test_draws_have_their_distribution_and_never_no_mass():
    probs = torch.tensor([0.5, 0.0, 0.3, 1e-9, 0.0, 0.2], dtype=torch.float32, device=DEVICE)
    rows, generator = probs.expand(20_000, -1), torch.Generator(DEVICE).manual_seed(0)
    uniform = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = {
        "race": race(rows, 1, generator)[0].flatten(),
        "race for two": race(rows, 2, generator)[0][:, 0],
        "independent": draw_independent(rows, 3, generator).flatten(),
        "inverse": inverse_cdf(rows, uniform.to(DEVICE)),
        "on the host": draw_on_host(rows, uniform)[0],
    }
    exact = dict(enumerate((probs.double() / probs.double().sum()).tolist()))
    for name, tokens in found.items():
        counts = Counter(tokens.tolist())
        assert not counts[1] + counts[4], name
        assert g_test(counts, {token: prob for token, prob in exact.items() if prob}) > 1e-4, name


@pytest.mark.parametrize("size", [1000, 151_936])
def test_draws_of_a_large_vocabulary_are_those_of_the_cpu(size):
    """The same uniforms name the same tokens, but where a sum's rounding decides."""
    generator = torch.Generator().manual_seed(1)
    probs = torch.randn(200, size, generator=generator).mul(3).softmax(-1)
    uniform = torch.rand(200, dtype=torch.float64, generator=generator)
    here, there = draw_on_host(probs, uniform)[0], draw_on_host(probs.to(DEVICE), uniform)[0]
    assert (here == there).float().mean() >= 0.99
    assert inverse_cdf(probs.to(DEVICE), uniform.to(DEVICE)).cpu().eq(here).float().mean() >= 0.99
