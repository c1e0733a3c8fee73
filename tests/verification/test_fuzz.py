"""From raw logits, whatever they hold, to a verdict or a named error: processors, distributions and rules as in the
engine.

Small vocabularies take the dense forms, large ones the walks and the fast top-p.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from treespec.engine.target_probs import TargetProbs
from treespec.errors import LogitsError
from treespec.hf.generation.processors import TreeProcessors
from treespec.protocols import History, Scores
from treespec.sampling import truncate_probs
from treespec.tree import TreeBatch
from treespec.verification import RULES, verify
from treespec.verification.dispatch import DENSE_ON_CPU, verify_batch

VOCAB_SIZES = (1, 2, 700, 2100)
NUM_NODES = 4
ODD_VALUES = [-math.inf, -3e38, -1e4, 1e-40, 0.0, 88.0, 1e4, 3e38]
BAD_VALUES = [math.nan, math.inf]


def odd_logits(rng: np.random.Generator, shape: tuple[int, ...], values: list[float]) -> Tensor:
    """Ordinary logits of any scale, some of them replaced; now and then all of a row."""
    logits = torch.from_numpy(rng.choice([0.0, 1e-30, 1.0, 30.0, 1e30]) * rng.standard_normal(shape)).float()
    for row in logits.view(-1, shape[-1]):
        num_odd = rng.choice([0, 0, 1, 3, shape[-1]])
        row[torch.from_numpy(rng.integers(shape[-1], size=num_odd))] = float(rng.choice(values))
    return logits


def drafted(rng: np.random.Generator, vocab_size: int, is_chain: bool) -> TreeBatch:
    """Tokens drawn from distributions of two to twenty tokens; distributions of odd logits where those give any."""
    logits = odd_logits(rng, (3, vocab_size), ODD_VALUES).softmax(-1)
    probs = truncate_probs(torch.where(logits.isnan(), 1 / vocab_size, logits), int(rng.integers(2, 21)))
    parents, index = ([-1, 0, 1, 2], [-1, 0, 1, 2]) if is_chain else ([-1, 0, 0, 1], [-1, 0, 0, 1])
    double = probs.double() / probs.double().sum(-1, keepdim=True)
    tokens = [0, *(int(rng.choice(vocab_size, p=double[row].numpy())) for row in index[1:])]
    return TreeBatch(torch.tensor([tokens]), torch.tensor([parents]), probs, torch.tensor([index]))


def processors(rng: np.random.Generator) -> TreeProcessors:
    top_p = TopPLogitsWarper(float(rng.choice([1e-6, 0.3, 0.95, 1 - 1e-6, 1.0])))
    return TreeProcessors([TemperatureLogitsWarper(float(rng.choice([1e-3, 0.8, 50.0]))), top_p], num_rows=1)


@seed(0)
@settings(max_examples=125, deadline=None, database=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(VOCAB_SIZES), st.booleans(), st.booleans())
def test_a_verdict_or_a_named_error(random_seed: int, vocab_size: int, is_chain: bool, is_bad: bool) -> None:
    rng = np.random.default_rng(random_seed)
    trees = drafted(rng, vocab_size, is_chain)
    logits = odd_logits(rng, (1, NUM_NODES, vocab_size), ODD_VALUES + BAD_VALUES * is_bad)
    history = History(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))
    apply = processors(rng)
    coins, draws = (torch.from_numpy(rng.choice([0.0, rng.random(), 1 - 2**-53], size=(1, 4))) for _ in range(2))
    target_probs = TargetProbs(trees, Scores(logits), history, apply, [0], is_sampling=True)
    is_usable = [is_probs_or_error(target_probs, node) for node in range(NUM_NODES)]
    for rule in RULES.values():
        if rule.reason_against(trees) is not None:
            continue
        fresh = TargetProbs(trees, Scores(logits), history, apply, [0], is_sampling=True)
        try:
            (verdict,) = verify_batch(rule, trees, fresh, coins, draws)
        except LogitsError:
            assert not all(is_usable), rule.name
            continue
        tokens = [*(trees.trees[0].token(node) for node in verdict.path[1:]), verdict.next_token]
        assert all(is_usable[node] for node in verdict.path), rule.name
        if all(is_usable):
            probs = target_probs.dense()
            assert verify(trees, probs, rule, coins=coins, draws=draws) == [verdict], rule.name
        if rule.is_lossless:
            assert all(
                target_probs.probs(0, node)[token] > 0 for node, token in zip(verdict.path, tokens, strict=True)
            ), rule.name


def is_probs_or_error(target_probs: TargetProbs, node: int) -> bool:
    """True for a distribution that sums to one, False for logits that are refused by name."""
    try:
        distribution = target_probs.probs(0, node)
    except LogitsError:
        return False
    assert (distribution >= 0).all()
    assert float(distribution.sum()) == pytest.approx(1, abs=1e-4)
    return True


def test_both_forms_are_fuzzed() -> None:
    sizes = [NUM_NODES * vocab_size for vocab_size in VOCAB_SIZES]
    assert min(sizes) <= DENSE_ON_CPU < max(sizes)
    assert max(VOCAB_SIZES) > 4 * 128, "wide enough for the fast top-p"
