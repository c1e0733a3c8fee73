"""Facts that are read of a model, and that training mode and gradient checkpointing are worked with."""

from contextlib import suppress

import pytest
import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

import treespec
from treespec.errors import UnsupportedModelError
from treespec.hf import TreeScorer, introspect
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.introspect import CACHE_NAME, ModelFacts, model_facts

OPTIONS = {"max_new_tokens": 16, "do_sample": False}


def test_facts_are_read_once_and_passed_along():
    model = tiny_llama()
    facts = model_facts(model)
    assert isinstance(facts, ModelFacts)
    assert model_facts(facts) is facts
    assert TreeScorer(facts).facts is facts
    assert (facts.num_logits, facts.cache_argument, facts.max_positions) == (64, CACHE_NAME, None)


class Bare(PreTrainedModel):
    """A model without parameters."""

    config_class = PreTrainedConfig


class Other(Bare):
    """A model of parameters, none of which are embeddings."""

    def __init__(self, config):
        super().__init__(config)
        self.layer = nn.Linear(2, 2)


@pytest.mark.parametrize("kind", [Bare, Other])
def test_other_models_are_refused_by_name(kind):
    with pytest.raises(UnsupportedModelError, match=f"{kind.__name__} is not a language model over tokens: "):
        model_facts(kind(PreTrainedConfig()))


def test_a_mistake_of_ours_is_not_taken_for_another_kind_of_model(monkeypatch):
    def wrong(*_):
        raise AttributeError("ours")

    monkeypatch.setattr(introspect, "weight_kinds", wrong)
    with pytest.raises(AttributeError, match="ours"):
        model_facts(tiny_llama())


@pytest.mark.parametrize("is_checkpointing", [False, True])
@pytest.mark.parametrize("who", ["target", "draft"])
def test_models_in_training_mode_decode_as_in_evaluation_mode(who, is_checkpointing):
    target, ids = tiny_llama(attention_dropout=0.5), prompt(2)
    draft = noisy_copy(target)
    plain = target.generate(ids, **OPTIONS)
    trained = {"target": target, "draft": draft}[who]
    trained.train()
    if is_checkpointing:
        (getattr(trained, "activation_checkpointing_enable", None) or trained.gradient_checkpointing_enable)()
    out = treespec.generate(target, ids, treespec.TreeSpeculation(draft, tree=8), **OPTIONS)
    assert torch.equal(out, plain)
    assert all(module.training for module in trained.modules())


def test_modules_get_their_own_modes_back_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with suppress(RuntimeError), evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == [True, True, False]
