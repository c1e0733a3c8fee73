"""Facts that are read of a model, and that training mode and gradient checkpointing are worked with."""

from contextlib import suppress

import pytest
import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

import treespec
from treespec.errors import UnsupportedModelError
from treespec.hf import introspect
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.introspect import model_facts

OPTIONS = {"max_new_tokens": 16, "do_sample": False}


class Other(PreTrainedModel):
    """A model without embeddings, and without parameters."""

    config_class = PreTrainedConfig


def test_other_models_are_refused_by_name():
    model = Other(PreTrainedConfig())
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match="Other is not a language model over tokens: "):
            model_facts(model)
        model.layer = nn.Linear(2, 2)  # It has parameters now.


def test_a_mistake_of_ours_is_not_taken_for_another_kind_of_model(monkeypatch):
    def wrong(*_):
        raise AttributeError("ours")

    monkeypatch.setattr(introspect, "weight_kinds", wrong)
    with pytest.raises(AttributeError, match="ours"):
        model_facts(tiny_llama())


@pytest.mark.parametrize("who", ["target", "draft"])
def test_models_in_training_mode_with_checkpoints_decode_as_in_evaluation_mode(who):
    target = tiny_llama(attention_dropout=0.5)
    draft = noisy_copy(target)
    plain = target.generate(prompt(2), **OPTIONS)
    trained = {"target": target, "draft": draft}[who].train()
    (getattr(trained, "activation_checkpointing_enable", None) or trained.gradient_checkpointing_enable)()
    out = treespec.generate(target, prompt(2), treespec.TreeSpeculation(draft, tree=8), **OPTIONS)
    assert torch.equal(out, plain)
    assert all(module.training for module in trained.modules())


def test_modules_get_their_own_modes_back_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with suppress(RuntimeError), evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == [True, True, False]
