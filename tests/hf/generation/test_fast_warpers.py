"""Warpers that sort faster keep what transformers' own keep."""

import pytest
import torch
from transformers import TopPLogitsWarper
from transformers.generation.logits_process import TopKLogitsWarper, TypicalLogitsWarper

from treespec.hf.generation.fast_warpers import FastTopP, FastTypical, stable_order


def hard_scores(vocab_size):
    """Flat and steep rows, ties, few tokens left, one token left."""
    scores = torch.randn(7, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    scores *= torch.tensor([[0.01], [1.0], [4.0], [30.0], [2.0], [1.0], [1.0]])
    scores[4] = scores[4].round()
    scores[5, 12:] = -torch.inf
    scores[6, 1:] = -torch.inf
    scores[1, ::3] = -0.0
    return scores


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("vocab_size", [40, 600, 20_000])
def test_top_p_is_the_librarys_bit_for_bit(top_p, vocab_size):
    """Also where equal scores are cut, of which the library keeps those that its sort happens to put last."""
    scores, warper = hard_scores(vocab_size), TopPLogitsWarper(top_p)
    for each in (scores, scores.bfloat16().float()):
        assert torch.equal(FastTopP(warper)(each[:, :1].long(), each), warper(each[:, :1].long(), each))
        on_accelerators = FastTopP(warper)._filter_sorted(each[:, :1].long(), each)
        assert torch.equal(on_accelerators, warper(each[:, :1].long(), each))


def test_fast_top_p_after_top_k_and_with_a_minimum():
    scores = torch.randn(3, 4000, generator=torch.Generator().manual_seed(0))
    ids = torch.zeros(3, 1, dtype=torch.long)
    cut = TopKLogitsWarper(20)(ids, scores)
    for warper in (TopPLogitsWarper(0.7), TopPLogitsWarper(0.01, min_tokens_to_keep=7)):
        assert torch.equal(FastTopP(warper)(ids, cut).isfinite(), warper(ids, cut).isfinite())


@pytest.mark.parametrize("vocab_size", [40, 600, 20_000, 262_144])
def test_typical_is_the_librarys_bit_for_bit(vocab_size):
    scores = hard_scores(vocab_size)
    for mass in (0.2, 0.9) if vocab_size > 100_000 else (0.05, 0.2, 0.5, 0.9, 0.999):
        warper = TypicalLogitsWarper(mass)
        assert torch.equal(FastTypical(warper)(scores[:, :1].long(), scores), warper(scores[:, :1].long(), scores))


def test_the_order_is_that_of_a_stable_sort():
    scores = torch.cat([hard_scores(600), -hard_scores(600).abs()])
    assert torch.equal(stable_order(scores), scores.sort(dim=-1, stable=True).indices)
