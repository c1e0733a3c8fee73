"""What is read of a model: training mode, gradient checkpointing, adapters and int8 layers are worked with or named."""

from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama
from torch import nn

import treespec
from treespec.errors import TreespecWarning, UnsupportedModelError
from treespec.hf import TreeScorer
from treespec.hf.introspect import ModelFacts, evaluation_mode, model_facts
from treespec.hf.models import capability

OPTIONS = {"max_new_tokens": 16, "do_sample": False}


def test_facts_are_read_once_and_passed_along():
    model = tiny_llama()
    facts = model_facts(model)
    assert isinstance(facts, ModelFacts)
    assert model_facts(facts) is facts
    assert TreeScorer(facts).facts is facts
    assert (facts.num_logits, facts.cache_argument, facts.max_positions) == (64, "past_key_values", None)


@pytest.mark.parametrize("is_checkpointing", [False, True])
@pytest.mark.parametrize("who", ["target", "draft"])
def test_models_in_training_mode_decode_as_in_evaluation_mode(who, is_checkpointing):
    target, ids = tiny_llama(attention_dropout=0.5), prompt(2)
    draft = noisy_copy(target)
    plain = target.generate(ids, **OPTIONS)
    trained = {"target": target, "draft": draft}[who]
    trained.train()
    if is_checkpointing:
        trained.activation_checkpointing_enable()
    out = treespec.generate(target, ids, treespec.TreeSpeculation(draft, tree=8), **OPTIONS)
    assert torch.equal(out, plain)
    assert all(module.training for module in trained.modules())


def test_modules_get_their_own_modes_back_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with suppress(RuntimeError), evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == [True, True, False]


class PromptTuningConfig(SimpleNamespace):
    is_prompt_learning = True


class PromptTuned(nn.Module):
    """Wraps a model as PEFT does: its `generate` lends the base model a method of its own, and calls that one's."""

    def __init__(self, model, config):
        super().__init__()
        self.base_model, self.config, self.peft_config = model, model.config, {"default": config}
        self.generation_config = model.generation_config

    def prepare_inputs_for_generation(self, *args, **kwargs):
        return type(self.base_model).prepare_inputs_for_generation(self.base_model, *args, **kwargs)

    def generate(self, *args, **kwargs):
        self.base_model.prepare_inputs_for_generation = self.prepare_inputs_for_generation
        try:
            return self.base_model.generate(*args, **kwargs)
        finally:
            del self.base_model.prepare_inputs_for_generation


def test_prompt_learning_adapters_are_refused_by_name():
    speculation = treespec.TreeSpeculation(treespec.TokenRecycling())
    tuned, ids = PromptTuned(tiny_llama(), PromptTuningConfig()), prompt(1)
    with pytest.raises(UnsupportedModelError, match=r"PromptTuningConfig.*LoRA, work"):
        treespec.generate(tuned, ids, speculation, **OPTIONS)
    with pytest.raises(UnsupportedModelError, match=r"PromptTuningConfig.*LoRA, work"):
        tuned.generate(ids, custom_generate=speculation, **OPTIONS)


def test_lora_adapters_are_not_refused():
    """LoRA's configurations say False."""
    model, ids = tiny_llama(), prompt(1)
    plain = model.generate(ids, **OPTIONS)
    lora = PromptTuned(model, SimpleNamespace(is_prompt_learning=False))
    speculation = treespec.TreeSpeculation(treespec.TokenRecycling())
    assert torch.equal(lora.generate(ids, custom_generate=speculation, **OPTIONS), plain)


@pytest.mark.filterwarnings("default")
def test_dynamic_int8_layers_are_named(monkeypatch):
    monkeypatch.setattr(capability, "_said", set())
    quantised = torch.ao.quantization.quantize_dynamic(tiny_llama(), {nn.Linear}, dtype=torch.qint8)
    speculation = treespec.TreeSpeculation(treespec.TokenRecycling())
    with pytest.warns(TreespecWarning, match=r"dynamic int8 layers \(Linear\).*can differ from plain generate"):
        treespec.generate(quantised, prompt(1), speculation, **OPTIONS)
