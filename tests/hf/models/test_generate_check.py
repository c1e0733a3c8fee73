"""Models whose own `generate` has other logits than their passes: refused by name, never silently different."""

import threading
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from helpers.tiny import tiny_llama
from helpers.zoo import Architecture, build
from transformers import LlamaForCausalLM

from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import TreespecWarning, UnsupportedModelError
from treespec.hf import make_scorer
from treespec.hf.introspect import model_facts
from treespec.hf.models import generate_check
from treespec.hf.models.generate_check import check_like_generate
from treespec.protocols import Capability

PROMPTS = torch.arange(3, 27).reshape(2, 12)
PADDED = (torch.arange(12) >= torch.tensor([[0], [3]])).long()

SMALL_IMAGES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "hc_mult": 2}
SMALL_ATTENTION = {"head_dim": 16, "q_lora_rank": 16, "o_lora_rank": 16, "o_groups": 2, "sliding_window": 8}
SMALL_INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 256, "num_key_value_heads": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "git": {"vision_config": SMALL_IMAGES | {"image_size": 8, "patch_size": 4}},
    "deepseek_v4": {
        **SMALL_EXPERTS,
        **SMALL_ATTENTION,
        **SMALL_INDEX,
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
        "mlp_layer_types": ["moe", "moe"],
    },
    "moshi": {"ffn_dim": 48, "num_key_value_heads": 4, "sliding_window": 8, "head_dim": 8},
}


def tiny(model_type: str) -> Any:
    model = build(Architecture(model_type, OPTIONS[model_type], attention="eager"))
    model.generation_config.eos_token_id = None
    return model


def decoded(model: Any, num_rows: int, speculation: Any = None) -> torch.Tensor:
    prompts = {"input_ids": PROMPTS[:num_rows], "attention_mask": PADDED[:num_rows]}
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    return model.generate(**prompts, **options, custom_generate=speculation)


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
@pytest.mark.parametrize("model_type", ["git", "deepseek_v4"])
def test_padding_that_generate_reads_otherwise(model_type):
    model = tiny(model_type)
    speculation = TreeSpeculation(TokenRecycling(), tree=4)
    assert torch.equal(decoded(model, 1, speculation), decoded(model, 1))
    with pytest.raises(UnsupportedModelError, match="of padded batches here: give its prompts one by one"):
        decoded(model, 2, speculation)


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_a_model_whose_single_tokens_differ_from_its_chains():
    with pytest.raises(UnsupportedModelError, match="MoshiForCausalLM has logits in its own generate"):
        decoded(tiny("moshi"), 1, TreeSpeculation(TokenRecycling(), tree=4))


@pytest.mark.parametrize("method", ["_prefill", "_sample"])
def test_methods_that_speculation_replaces(method):
    class Own(LlamaForCausalLM):
        pass

    setattr(Own, method, lambda self, *args, **kwargs: getattr(LlamaForCausalLM, method)(self, *args, **kwargs))
    model = Own(tiny_llama(96).config).eval()
    with pytest.raises(UnsupportedModelError, match=f"Own decodes by a {method} of its own"):
        decoded(model, 1, TreeSpeculation(TokenRecycling(), tree=4))


class Shifting(LlamaForCausalLM):
    """Puts every generated token somewhere else, as no pass over several tokens does."""

    def prepare_inputs_for_generation(self, *args, is_first_iteration=False, **kwargs):
        inputs = super().prepare_inputs_for_generation(*args, is_first_iteration=is_first_iteration, **kwargs)
        if not is_first_iteration:
            inputs["position_ids"] = inputs["position_ids"] + 7
        return inputs


def test_a_model_is_measured_at_its_first_padded_batch_and_in_every_attention_and_dtype(monkeypatch):
    measured, model = [], tiny_llama(96)
    monkeypatch.setattr(generate_check, "_difference", lambda *args: measured.append(args[1]) or 0.0)
    check_like_generate(model_facts(model), Capability.TREE, is_padded=False)
    for change in (int, int, lambda: model.set_attn_implementation("eager"), lambda: model.to(torch.float64), int):
        change()
        check_like_generate(model_facts(model), Capability.TREE, is_padded=True)
    assert measured == [True] * 3


@pytest.mark.parametrize(
    "saved", [{}, {"num_return_sequences": 2, "do_sample": True}, {"num_beams": 3, "num_return_sequences": 3}]
)
def test_tokens_that_generate_prepares_otherwise(saved):
    """A saved generation configuration does not hide the difference."""
    model = Shifting(tiny_llama(96).config).eval()
    model.generation_config.update(**saved)
    with pytest.raises(UnsupportedModelError, match=r"Shifting has logits in its own generate.*: use its own generate"):
        check_like_generate(make_scorer(model).facts, Capability.TREE, is_padded=False)


def test_a_plain_generate_that_fails_is_said_and_tried_again():
    facts = make_scorer(Shifting(tiny_llama(96).config).eval()).facts
    failing = facts.model.generate = Mock(side_effect=RuntimeError("not now"))
    with pytest.warns(TreespecWarning, match="could not be compared with its own generate, which fails"):
        check_like_generate(facts, Capability.TREE, is_padded=False)
    assert failing.called
    del facts.model.generate
    with pytest.raises(UnsupportedModelError, match="Shifting has logits in its own generate"):
        check_like_generate(facts, Capability.TREE, is_padded=False)


def test_threads_that_share_a_model_measure_it_once(monkeypatch):
    begun, go_on, measured = threading.Event(), threading.Event(), []

    def measure(facts, is_padded, capability):
        measured.append(is_padded)
        begun.set()
        go_on.wait(10)
        return 0.0

    monkeypatch.setattr(generate_check, "_difference", measure)
    facts = make_scorer(tiny_llama(96)).facts
    threads = [threading.Thread(target=check_like_generate, args=(facts, Capability.TREE, True)) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait(10)
    go_on.set()
    for thread in threads:
        thread.join()
    assert measured == [True]


def test_nothing_is_right_where_a_difference_is_nan(monkeypatch):
    facts = make_scorer(tiny_llama()).facts
    monkeypatch.setattr(generate_check, "_difference", lambda *args: float("nan"))
    with pytest.raises(UnsupportedModelError, match="nan standard deviations"):
        check_like_generate(facts, Capability.TREE, is_padded=True)
