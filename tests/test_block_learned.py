"""A block head that was taught what a toy target says next drafts it: context, anchors, slots and the Markov head's
tokens stand where training has them."""

from dataclasses import replace

import pytest
import torch
from taught import LAYER, SIZE, VOCAB, Alternating, mean_acceptance

from treespec.drafters import BlockDrafter
from treespec.heads.dflash import BlockConfig, BlockHead, Span
from treespec.heads.layers import LayerConfig
from treespec.policies import BestFirst, Chain
from treespec.protocols import Scores


def teach(is_dspark, num_steps=100):
    """The toy target, its embedding, and a head trained on blocks anchored anywhere in texts of two lengths."""
    model, generator = Alternating(VOCAB), torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, SIZE, generator=generator)
    options = {"has_anchor_output": True, "markov_rank": 8, "block_size": 3} if is_dspark else {"block_size": 4}
    layer = LayerConfig(SIZE, 64, 2, 1, 8, has_head_norms=True)
    config = BlockConfig(layer, VOCAB, VOCAB, SIZE, 1, mask_token=VOCAB - 1, spans=(Span(),), **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = BlockHead(config, embedding, torch.arange(VOCAB))
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    for _ in range(num_steps):
        texts = torch.randint(0, VOCAB, (16, 2), generator=generator)
        for _ in range(30):
            texts = torch.cat([texts, model.changed[texts[:, -2:-1]]], 1)
        lengths = torch.tensor([32, 24]).repeat(8).unsqueeze(1)
        anchors = 1 + torch.randint(0, 2**30, (16, 8), generator=generator) % (lengths - 4)
        outputs = head(texts, embedding[texts], anchors, torch.arange(32) < lengths)
        before = anchors.unsqueeze(-1) + torch.arange(3)
        guessed_after, goals = (texts.gather(1, (before + i).flatten(1)).view_as(before) for i in (0, 1))
        loss = torch.nn.functional.cross_entropy(head.read(outputs, guessed_after).flatten(0, -2), goals.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, embedding, head.eval()


@pytest.fixture(scope="module", params=[False, True], ids=["dflash", "dspark"])
def taught(request):
    return teach(request.param)


class Misplaced(BlockDrafter):
    """Takes the states of the tokens after those that were emitted."""

    def commit(self, step):
        late = {layer: states.roll(-1, 1) for layer, states in step.scores.hidden_states.items()}
        super().commit(replace(step, scores=Scores(step.scores.logits, late)))


class Shifted(BlockDrafter):
    """Takes every depth's guess for that of the depth above."""

    def _read_block(self, num_depths):
        return super()._read_block(num_depths).roll(-1, 1)


def acceptance(taught, policy, kind=BlockDrafter):
    model, embedding, head = taught
    return mean_acceptance(model, embedding, kind(head, (LAYER,)), policy)


def test_a_taught_head_is_mostly_right(taught):
    assert acceptance(taught, Chain(3)) > 2.4
    assert acceptance(taught, BestFirst(10)) > 2.9


@pytest.mark.parametrize("kind", [Misplaced, Shifted])
def test_misplaced_features_would_show(taught, kind):
    assert acceptance(taught, Chain(3), kind) < 1.4
