"""Training for any target: layers to fuse or to keep, anchors; and targets that no drafter fits."""

from functools import partial

import pytest
import torch
from helpers.training import SMALL, VOCAB, random_texts
from helpers.zoo import build
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from treespec.errors import UnsupportedModelError
from treespec.training import TrainingConfig, train
from treespec.training.dflash import draw_anchors
from treespec.training.draft_model import prune, spread_layers
from treespec.training.heads import usual_layers


def test_a_model_of_any_depth_has_different_layers_to_fuse():
    assert usual_layers(30) == (2, 15, 27)
    for count in range(1, 41):
        layers = usual_layers(count)
        assert list(layers) == sorted(set(layers))
        assert layers[0] >= 0
        assert layers[-1] < count


def test_anchors_are_where_the_target_generated_the_token():
    is_generated = torch.rand(3, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    anchors = draw_anchors(is_generated, 10, torch.Generator().manual_seed(1))
    assert is_generated.gather(1, anchors).all()
    assert all(len(set(row)) == 10 for row in anchors.tolist())


def test_pruned_models_keep_the_given_layers(target):
    pruned, ids = prune(target, [0, 2]), torch.randint(1, VOCAB, (1, 6), generator=torch.Generator().manual_seed(0))
    assert torch.equal(pruned.model.layers[1].mlp.up_proj.weight, target.model.layers[2].mlp.up_proj.weight)
    whole = prune(target, range(3))
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, target(ids).logits)
        assert not torch.allclose(pruned(ids).logits, target(ids).logits)
    assert spread_layers(30, 5) == [0, 7, 14, 22, 29]


def no_pairs():
    return GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=64, n_embd=36, n_layer=2, n_head=4)).eval()


def narrow_words():
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 16, "ffn_dim": 48, "num_hidden_layers": 2}
    return OPTForCausalLM(OPTConfig(vocab_size=96, num_attention_heads=4, **sizes)).eval()


@pytest.mark.parametrize(
    ("kind", "make", "words"),
    [
        *((kind, no_pairs, "heads of size 9") for kind in ("eagle3", "dflash")),
        *((kind, narrow_words, "embedding is 16 wide where its hidden states") for kind in ("eagle3", "dflash")),
        ("draft_model", partial(build, "gemma2"), "after the output head"),
        ("mtp", partial(build, "phi"), "MTP layers have norms with"),
        *(("mtp", partial(build, name), "with attention and one MLP") for name in ("mixtral", "mamba")),
    ],
)
def test_targets_that_no_drafter_fits_are_refused_before_they_read(tmp_path, kind, make, words):
    with pytest.raises(UnsupportedModelError, match=words):
        train(make(), random_texts(96), tmp_path, TrainingConfig(kind=kind, **SMALL))
    assert not list(tmp_path.iterdir())
