"""A block head that was taught what a toy target says next drafts it: context, anchors, slots and the Markov head's
tokens stand where training has them."""

import pytest
import taught
import torch
from taught import SIZE, VOCAB, Alternating, mean_acceptance

from treespec.drafters import DFlash
from treespec.heads.modules.dflash import DFlashConfig, DFlashHead, Span
from treespec.heads.modules.layers import LayerConfig
from treespec.policies import BestFirst, Chain


@pytest.fixture(scope="module", params=[False, True], ids=["dflash", "dspark"])
def learned(request):
    """The toy target, its embedding, and a head trained on blocks anchored anywhere in texts of two lengths."""
    model, generator = Alternating(VOCAB), torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, SIZE, generator=generator)
    options = {"has_anchor_output": True, "markov_rank": 8, "block_size": 3} if request.param else {"block_size": 4}
    layer = LayerConfig(SIZE, 64, 2, 1, 8, has_head_norms=True)
    config = DFlashConfig(layer, VOCAB, VOCAB, SIZE, 1, mask_token=VOCAB - 1, spans=(Span(),), **options)
    head = taught.fresh(DFlashHead, config, embedding)

    def loss():
        texts = torch.randint(0, VOCAB, (16, 2), generator=generator)
        for _ in range(30):
            texts = torch.cat([texts, model.changed[texts[:, -2:-1]]], 1)
        lengths = torch.tensor([32, 24]).repeat(8).unsqueeze(1)
        anchors = 1 + torch.randint(0, 2**30, (16, 8), generator=generator) % (lengths - 4)
        outputs = head(texts, embedding[texts], anchors, torch.arange(32) < lengths)
        before = anchors.unsqueeze(-1) + torch.arange(3)
        guessed_after, goals = (texts.gather(1, (before + i).flatten(1)).view_as(before) for i in (0, 1))
        return torch.nn.functional.cross_entropy(head.read(outputs, guessed_after).flatten(0, -2), goals.flatten())

    return model, embedding, taught.fit(head, loss)


class Misplaced(taught.Misplaced, DFlash):
    pass


class Shifted(DFlash):
    """Takes every depth's guess for that of the depth above."""

    def _read_block(self, num_depths):
        return super()._read_block(num_depths).roll(-1, 1)


def test_a_taught_head_is_mostly_right(learned):
    assert mean_acceptance(learned, DFlash, Chain(3)) > 2.4
    assert mean_acceptance(learned, DFlash, BestFirst(10)) > 2.9


@pytest.mark.parametrize("kind", [Misplaced, Shifted])
def test_misplaced_features_would_show(learned, kind):
    assert mean_acceptance(learned, kind, Chain(3)) < 1.4
