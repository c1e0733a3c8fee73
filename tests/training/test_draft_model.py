"""Draft models cut out of their targets."""

import torch
from helpers.training import VOCAB

from treespec.training.draft_model import prune, spread_layers


def test_pruned_models_keep_the_given_layers(target):
    pruned, ids = prune(target, [0, 2]), torch.randint(1, VOCAB, (1, 6), generator=torch.Generator().manual_seed(0))
    assert torch.equal(pruned.model.layers[1].mlp.up_proj.weight, target.model.layers[2].mlp.up_proj.weight)
    whole = prune(target, range(3))
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, target(ids).logits)
        assert not torch.allclose(pruned(ids).logits, target(ids).logits)
    assert spread_layers(30, 5) == [0, 7, 14, 22, 29]
