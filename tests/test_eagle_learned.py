"""A head that was taught what a toy target says next drafts it: features, tokens and positions stand where training has
them."""

from dataclasses import replace

import pytest
import torch
from taught import LAYER, SIZE, VOCAB, SecondOrder, mean_acceptance

from treespec.drafters import Eagle3
from treespec.heads.eagle3 import Eagle3Config, Eagle3Head, unroll
from treespec.heads.layers import LayerConfig
from treespec.policies import BestFirst, Chain
from treespec.protocols import Scores


@pytest.fixture(scope="module")
def taught():
    """The toy target, its embedding, and a head trained on random texts of it for a hundred steps."""
    model, generator = SecondOrder(VOCAB), torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, SIZE, generator=generator)
    best = model.best_next()
    config = Eagle3Config(LayerConfig(SIZE, 96, 2, 1, 8), VOCAB, VOCAB, SIZE, num_features=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = Eagle3Head(config, embedding, torch.arange(VOCAB))
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    for _ in range(100):
        texts = torch.randint(0, VOCAB, (32, 16), generator=generator)
        logits = unroll(head, texts[:, 1:], head.fuse(embedding[texts[:, :-1]]), 3)
        after = best[texts[:, :-1], texts[:, 1:]]
        goals = [after[:, i:].flatten() for i in range(3)]
        losses = [torch.nn.functional.cross_entropy(x.flatten(0, 1), y) for x, y in zip(logits, goals, strict=True)]
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, embedding, head.eval()


class Misplaced(Eagle3):
    """Pairs every emitted token with the state at it, not before it."""

    def commit(self, step):
        late = {layer: states.roll(-1, 1) for layer, states in step.scores.hidden_states.items()}
        super().commit(replace(step, scores=Scores(step.scores.logits, late)))


def acceptance(taught, policy, kind=Eagle3):
    model, embedding, head = taught
    return mean_acceptance(model, embedding, kind(head, (LAYER,)), policy)


def test_a_taught_head_is_mostly_right(taught):
    assert acceptance(taught, Chain(3)) > 3.3
    assert acceptance(taught, BestFirst(10)) > 4.5


def test_misplaced_features_would_show(taught):
    assert acceptance(taught, Chain(3), Misplaced) < 2
