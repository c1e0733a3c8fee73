"""The first token comes from the pass that reads the prompt, as plain `generate`'s: no draft precedes it."""

import pytest
import torch
from helpers.head_runs import left_padded
from helpers.tiny import identical, tiny_llama
from helpers.zoo import build

from treespec import KAry, TokenRecycling, TreeSpeculation

KINDS = ["llama", "mamba2", "qwen3_next"]


@pytest.fixture(scope="module")
def models():
    return {kind: tiny_llama() if kind == "llama" else build(kind) for kind in KINDS}


def trees(**options):
    return TreeSpeculation(TokenRecycling(), tree=KAry((2, 1)), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_takes_no_pass_besides_the_prompts_and_a_row_may_end_with_it(models, kind):
    inputs = left_padded([9, 4, 1])
    stats = identical(models[kind], inputs, trees(), max_new_tokens=1)
    assert (stats.num_first_tokens, stats.num_emitted_tokens, stats.num_target_passes) == (3, 3, 0)
    assert stats.block_efficiency == 0.0
    plain = models[kind].generate(**inputs, max_new_tokens=12, do_sample=False)
    first = plain[:, inputs["input_ids"].shape[1]]
    for row in range(3):
        stats = identical(models[kind], inputs, trees(), max_new_tokens=12, eos_token_id=int(first[row]))
        assert stats.num_first_tokens == 3


def test_every_row_may_end_with_its_first_token(models):
    ids = left_padded([9])["input_ids"].repeat(2, 1)
    plain = models["llama"].generate(ids, max_new_tokens=1, do_sample=False)
    stats = identical(models["llama"], ids, trees(), max_new_tokens=8, eos_token_id=int(plain[0, -1]))
    assert (stats.num_emitted_tokens, stats.num_target_passes) == (2, 0)


def test_its_distribution_is_the_targets_under_the_processors(models):
    """Two tokens are possible, of known probabilities; the seed decides, and gives the same twice."""
    ids = left_padded([5])["input_ids"].repeat(4000, 1)
    options = {"max_new_tokens": 1, "do_sample": True, "top_k": 2, "temperature": 0.7}
    with torch.no_grad():
        best = (models["llama"](ids[:1]).logits[0, -1] / 0.7).topk(2)
    drawn = [models["llama"].generate(ids, custom_generate=trees(seed=1), **options)[:, -1] for _ in range(2)]
    assert torch.equal(*drawn)
    assert set(drawn[0].tolist()) == set(best.indices.tolist())
    share = (drawn[0] == best.indices[0]).float().mean().item()
    assert share == pytest.approx(float(best.values.softmax(0)[0]), abs=0.035)  # Above four standard deviations.
