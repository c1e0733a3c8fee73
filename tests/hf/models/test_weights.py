"""Weights of other kinds: quantised, half precision, tied, not loaded."""

import pytest
import torch
from accelerate import init_empty_weights
from helpers.tiny import identical, padded, prompt, tiny_llama
from helpers.zoo import build
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaForCausalLM

import treespec
from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import TreespecWarning, UnsupportedModelError
from treespec.hf.introspect import CACHE_NAME, cache_in, model_facts
from treespec.hf.models.capability import neighbour_effect
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.measuring import machine_key
from treespec.protocols import Capability

OPTIONS = {"max_new_tokens": 16, "do_sample": False}


def dynamic_int8(seed=0):
    return torch.ao.quantization.quantize_dynamic(tiny_llama(seed=seed), {nn.Linear}, dtype=torch.qint8)


@pytest.fixture
def inputs():
    return padded(prompt(2), [0, 3])


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestOneScaleForAPass:
    """PyTorch's dynamic int8 layers: a token's logits depend on its neighbours, so nothing is drafted."""

    def test_it_is_found_and_said(self):
        model = dynamic_int8()
        with pytest.warns(TreespecWarning, match=r"which tokens share a pass.*Linear of torch.ao.*token by token"):
            treespec.generate(model, prompt(1), TreeSpeculation(TokenRecycling()), **OPTIONS)
        assert make_scorer(model).capability == Capability.PLAIN
        assert neighbour_effect(model_facts(model)) > 0.1
        assert neighbour_effect(model_facts(tiny_llama())) == 0

    @pytest.mark.parametrize(("seed", "length", "paddings"), [(0, 1, [0]), (1, 12, [0, 3])], ids=str)
    def test_it_decodes_as_plain_generate_does(self, seed, length, paddings):
        stats = identical(dynamic_int8(seed), padded(prompt(len(paddings), length), paddings))
        assert stats.num_target_passes == OPTIONS["max_new_tokens"] - 1

    def test_a_conversation_and_scores(self):
        model, speculation = dynamic_int8(), TreeSpeculation(TokenRecycling())
        options = OPTIONS | {"return_dict_in_generate": True, "output_logits": True}
        caches = {"plain": None, "ours": None}
        text = prompt(1)
        for _ in range(2):
            outs = {}
            for name, given in (("plain", {}), ("ours", {"custom_generate": speculation})):
                outs[name] = model.generate(text, **{CACHE_NAME: caches[name]}, **options, **given)
                caches[name] = cache_in(outs[name])
            assert torch.equal(outs["ours"].sequences, outs["plain"].sequences)
            torch.testing.assert_close(torch.stack(outs["ours"].logits), torch.stack(outs["plain"].logits))
            text = torch.cat([outs["ours"].sequences, prompt(1, 5, seed=9)], dim=1)

    def test_models_that_keep_states_are_refused_by_name(self):
        """Their rows have passes of their own, so that not even single tokens would be plain decoding's."""
        model = build("lfm2")
        model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        with pytest.raises(UnsupportedModelError, match="keeps a state, and its logits depend on which tokens share"):
            treespec.generate(model, prompt(1), TreeSpeculation(TokenRecycling()), **OPTIONS)

    def test_features_of_the_target_are_there(self):
        from helpers.medusa_files import random_heads

        model, ids = dynamic_int8(), prompt(1)
        identical(model, ids, TreeSpeculation(treespec.heads.Medusa(random_heads(3)), tree=8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(dtype, inputs):
    model = tiny_llama(tie_word_embeddings=dtype == torch.float64).to(dtype)
    assert identical(model, inputs).num_draft_tokens > 0


def test_empty_weights_are_refused():
    """Offloaded ones, which are empty too: tests/devices."""
    with init_empty_weights():
        model = LlamaForCausalLM(tiny_llama().config)
    for call in (
        lambda: TreeSpeculation(model),
        lambda: TreeSpeculation(TokenRecycling())(model, prompt(1), [], [], model.generation_config),
    ):
        with pytest.raises(UnsupportedModelError, match="meta device: load them"):
            call()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_that_is_quantised_in_place_is_checked_again(inputs):
    model = tiny_llama()
    assert identical(model, inputs).num_draft_tokens > 0
    key = machine_key(model_facts(model))
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8, inplace=True)
    assert identical(model, inputs).num_draft_tokens == 0
    assert machine_key(model_facts(model)) != key


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_torchao_quantised_in_place(name, inputs):
    quantization = pytest.importorskip("torchao.quantization")
    model = tiny_llama(hidden_size=64, intermediate_size=128)
    identical(model, inputs)
    quantization.quantize_(model, getattr(quantization, name)())
    assert identical(model, inputs).num_draft_tokens > 0
    assert neighbour_effect(model_facts(model)) == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("threshold", "drafts"), [(6.0, False), (0.0, True)])
def test_bitsandbytes_int8_is_drafted_for_without_outliers_only(threshold, drafts, tmp_path, inputs):
    pytest.importorskip("bitsandbytes")
    tiny_llama(hidden_size=64, intermediate_size=128).save_pretrained(tmp_path)
    config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=threshold)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config, dtype=torch.float32).eval()
    model.generation_config.pad_token_id = 0
    assert (identical(model, inputs).num_draft_tokens > 0) == drafts
