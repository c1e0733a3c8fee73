"""EAGLE-3 drafts: a head that was trained on a toy target drafts its tokens, so that features, tokens and positions are
where training has them."""

import pytest
import torch
from helpers import taught
from helpers.eagle3_files import shape
from helpers.head_runs import make, run
from helpers.taught import SIZE, VOCAB, SecondOrder, mean_acceptance
from helpers.tiny import prompt, tiny_llama

from treespec.heads import Eagle3
from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head, unroll
from treespec.heads.modules.layers import LayerConfig
from treespec.policies import BestFirst, Chain


@pytest.fixture(scope="module")
def learned():
    """The toy target, its embedding, and a head trained on random texts of it."""
    model, generator = SecondOrder(VOCAB), torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, SIZE, generator=generator)
    best = model.best_next()
    config = Eagle3Config(LayerConfig(SIZE, 96, 2, 1, 8), VOCAB, VOCAB, SIZE, num_features=1)
    head = taught.fresh(Eagle3Head, config, embedding)

    def loss():
        texts = torch.randint(0, VOCAB, (32, 16), generator=generator)
        steps = unroll(head, texts[:, 1:], head.fuse(embedding[texts[:, :-1]]), 3)
        after = best[texts[:, :-1], texts[:, 1:]]
        goals = [after[:, i:].flatten() for i in range(3)]
        logits = [head.lm_head(outputs).flatten(0, 1) for outputs in steps]
        return sum(map(torch.nn.functional.cross_entropy, logits, goals))

    return model, embedding, taught.fit(head, loss)


class Misplaced(taught.Misplaced, Eagle3):
    pass


def test_a_trained_head_is_mostly_right(learned):
    assert mean_acceptance(learned, Eagle3, Chain(3)) > 3.3
    assert mean_acceptance(learned, Eagle3, BestFirst(10)) > 4.5


def test_misplaced_features_would_show(learned):
    assert mean_acceptance(learned, Misplaced, Chain(3)) < 2


def test_a_budget_grows_no_deeper_than_with_any_other_draft_model(tmp_path):
    target = tiny_llama(num_layers=3)
    drafter, _ = make(tmp_path, target, shape(hidden=32, draft_vocab=64), seed=4)
    with torch.no_grad():
        drafter.head.lm_head.weight *= 40  # so confident that every tree is a chain
    run(target, drafter, {"input_ids": prompt(1, 6)}, 24, tree=20)
    assert max(int(step.trees.depths.max()) for step in drafter.steps) == 8
