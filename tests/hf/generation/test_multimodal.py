"""Prompts with images and sounds: greedy output is plain greedy output, with every way to read and to draft."""

from collections import Counter
from copy import deepcopy
from functools import partial

import pytest
import torch
import transformers
from helpers.multimodal import BY_NAME, KINDS, MEDIA, START, WITH_STATES, build, prompts
from helpers.tiny import identical, lookups, tiny_llama
from transformers import MllamaConfig, MllamaForConditionalGeneration

import treespec
from treespec import KAry, TreeSpeculation
from treespec.errors import ConfigError, UnsupportedModeError, UnsupportedModelError
from treespec.hf import make_scorer
from treespec.hf.introspect import CACHE_NAME, cache_in
from treespec.hf.recurrent import operators
from treespec.protocols import Capability
from treespec.testing import enumerate_continuations, g_test

OPTIONS = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None}


@pytest.fixture(scope="module")
def qwen():
    return build(BY_NAME["qwen2_vl"])


@pytest.fixture(scope="module")
def gemma():
    return build(BY_NAME["gemma3"])


def images(*num_images, name="qwen2_vl", **options):
    return prompts(BY_NAME[name], num_images, **options)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_greedy_equals_plain(kind):
    """Text alone, then a left-padded batch of several images, none and one; the images matter."""
    if kind.model_type == "llama4" and transformers.__version__ == "5.24.0":
        with pytest.raises(AttributeError, match="image_outputs"):  # No pass of it works in this version.
            build(kind)
        return
    model, speculation = build(kind), lookups()
    text, mixed = prompts(kind, [0]), prompts(kind, [2, 0, 1] if kind.can_batch else [1])
    for inputs in (text, mixed):
        identical(model, inputs, speculation, times=2, **OPTIONS)
    assert speculation.stats.num_accepted_tokens > 0  # It has seen these texts before.
    changed = {
        name: x.flip(-1) if name in kind.features(1) and x.is_floating_point() else x for name, x in mixed.items()
    }
    assert not torch.equal(model.generate(**changed, **OPTIONS), model.generate(**mixed, **OPTIONS))


@pytest.mark.parametrize(("name", "cache"), [("qwen2_vl", "static"), ("gemma3", "static"), ("paligemma", "dynamic")])
def test_drafters_that_read_the_prompt(name, cache):
    """The target's own weights, and a text model as drafters; placeholders are ids, 0 if the vocabulary lacks them."""
    model, inputs = build(BY_NAME[name], "eager"), images(1, 0, 2, name=name)
    options = OPTIONS | {"cache_implementation": cache}
    for drafter in (model, tiny_llama(96)):
        assert identical(model, inputs, TreeSpeculation(drafter, tree=8), **options).num_draft_tokens > 0


def test_sequences_per_prompt_and_sampling_with_one_outcome(qwen):
    identical(qwen, images(1, 0), **OPTIONS | {"do_sample": True, "top_k": 1, "num_return_sequences": 2})
    plain = qwen.generate(**images(1), **OPTIONS)
    assert torch.equal(treespec.generate(qwen, images(1), lookups(), **OPTIONS), plain)


def test_processors_see_placeholders_outside_the_vocabulary():
    """No token of the vocabulary is penalised in their stead, token 0 least of all."""
    model, inputs = build(BY_NAME["paligemma"]), images(2, 0, 1, name="paligemma")
    head = model.get_output_embeddings()
    head.weight.data[0] = head.weight.data[[20, 30, 40]].mean(0) * 3  # Token 0 is often the best one.
    for processors in ({"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 1}):
        identical(model, inputs, TreeSpeculation(deepcopy(model), tree=8), times=2, **OPTIONS | processors)


def test_several_hidden_states_for_each_token_are_refused():
    options = OPTIONS | {"output_hidden_states": True, "return_dict_in_generate": True}
    with pytest.raises(UnsupportedModelError, match=r"hidden states must be \[B, L, H\].*got \[4, 1, "):
        build(BY_NAME["gemma3n"]).generate(**images(0, name="gemma3n"), **options, custom_generate=lookups())


def test_a_conversation_goes_on_from_its_cache(qwen):
    """Text follows an image and the answer to it; the image is in the cache."""
    answer = OPTIONS | {"max_new_tokens": 4, "return_dict_in_generate": True}
    first = qwen.generate(**images(1), **answer, custom_generate=lookups())
    more = torch.cat([first.sequences, torch.tensor([[7, 8, 9]])], dim=1)
    plain = qwen.generate(more, **{CACHE_NAME: deepcopy(cache_in(first))}, **OPTIONS)
    out = qwen.generate(more, **{CACHE_NAME: cache_in(first)}, **OPTIONS, custom_generate=lookups())
    assert torch.equal(out, plain)


def test_a_prompt_that_ends_in_an_image_is_refused(gemma):
    ids = torch.tensor([[5, 6, START, *[MEDIA] * 4]])
    inputs = images(1, name="gemma3") | {"input_ids": ids, "token_type_ids": (ids == MEDIA).long()}
    del inputs["attention_mask"]
    with pytest.raises(UnsupportedModelError, match="must end in text"):
        gemma.generate(**inputs, **OPTIONS, custom_generate=lookups())


def test_what_an_image_left_behind_does_not_disturb_the_next_model_check():
    """Qwen keeps the positions' shift of the last prompt, of three rows here, when the model is checked."""
    model, inputs = build(BY_NAME["qwen2_vl"]), images(1, 0, 1)
    model.generate(**inputs, **OPTIONS)
    shift = model.model.rope_deltas
    assert make_scorer(model).capability == Capability.TREE
    assert model.model.rope_deltas is shift


def test_embeddings_and_ids_outside_the_vocabulary_are_refused(qwen):
    inputs = images(0)
    embeds = qwen.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(UnsupportedModeError, match="inputs_embeds"):
        qwen.generate(**inputs, inputs_embeds=embeds, **OPTIONS, custom_generate=lookups())
    with pytest.raises(ConfigError, match="id 172, outside"):
        treespec.generate(qwen, inputs | {"input_ids": inputs["input_ids"] + 90}, lookups(), **OPTIONS)


def probs_by_generate(generate, inputs, contexts):
    """Distributions after an image's prompt of one row and some tokens of text, by plain decoding of one token."""
    rows = []
    for tokens in contexts:
        mask = torch.ones(1, len(tokens), dtype=torch.long)
        ids = torch.tensor([tokens], dtype=torch.long)
        more = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": torch.zeros_like(mask)}
        longer = {name: torch.cat([inputs[name], extra], 1) for name, extra in more.items() if name in inputs}
        options = {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
        rows.append(generate(**inputs | longer, **options).scores[0][0].softmax(-1))
    return torch.stack(rows)


def test_sampled_text_after_an_image_follows_the_targets_distribution(qwen):
    inputs = images(1, length=6)
    options = {"do_sample": True, "top_k": 3, "temperature": 1.3, "eos_token_id": None}
    exact = enumerate_continuations(partial(probs_by_generate, partial(qwen.generate, **options), inputs), 3).joint
    speculation = TreeSpeculation(build(BY_NAME["qwen2_vl"]), tree=KAry((2, 2), children="iid"), seed=1)
    rows = {"max_new_tokens": 3, "num_return_sequences": 1500}
    out = qwen.generate(**inputs, **options | rows, custom_generate=speculation)
    found = Counter(map(tuple, out[:, inputs["input_ids"].shape[1] :].tolist()))
    assert sum(exact.values()) == pytest.approx(1)
    assert g_test(found, exact) > 1e-3
    assert speculation.stats.num_accepted_tokens > 100


def test_layers_that_attend_to_images_alone_are_refused_by_name():
    """Mllama caches an image's keys in layers of their own."""
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "vocab_size": 96, "cross_attention_layers": [1], "pad_token_id": 0}
    text |= {"bos_token_id": 1, "eos_token_id": 2}
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_global_layers": 1}
    vision |= {"attention_heads": 2, "image_size": 8, "patch_size": 4, "max_num_tiles": 1, "vision_output_dim": 32}
    vision |= {"supported_aspect_ratios": [[1, 1]], "intermediate_layers_indices": [0]}
    model = MllamaForConditionalGeneration(
        MllamaConfig(vision_config=vision, text_config=text, image_token_index=95)
    ).eval()
    inputs = {"input_ids": torch.tensor([[95, 5, 6, 7]]), "pixel_values": torch.randn(1, 1, 1, 3, 8, 8)}
    inputs |= {"aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long), "aspect_ratio_mask": torch.ones(1, 1, 1).long()}
    inputs["cross_attention_mask"] = torch.ones(1, 4, 1, 1, dtype=torch.long)
    with pytest.raises(UnsupportedModelError, match="MllamaForConditionalGeneration"):
        model.generate(**inputs, **OPTIONS, custom_generate=lookups())


@pytest.mark.filterwarnings("ignore:.*by chains:treespec.TreespecWarning")
@pytest.mark.parametrize("capability", [Capability.TREE, Capability.CHAIN])
@pytest.mark.parametrize("kind", WITH_STATES, ids=str)
def test_models_with_states_read_images_once(kind, capability, monkeypatch):
    """By trees, or chains where the recurrence has no form for trees.

    Text alone, a padded batch of several images, none and one, and images early in the prompt.
    """
    monkeypatch.setattr(operators, "_is_known", lambda names: capability == Capability.TREE)
    model, speculation = build(kind), lookups()
    for inputs in (prompts(kind, [0]), prompts(kind, [2, 0, 1]), prompts(kind, [1], length=3)):
        plain = model.generate(**inputs, **OPTIONS)
        for each in (speculation, TreeSpeculation(model, tree=4)):
            assert identical(model, inputs, each, times=2, **OPTIONS).num_draft_tokens > 0
    assert make_scorer(model).capability == capability
    inputs["pixel_values"] = inputs["pixel_values"].flip(-1)
    assert not torch.equal(model.generate(**inputs, **OPTIONS), plain)


def test_a_model_with_states_takes_no_prompt_that_ends_in_an_image():
    kind = BY_NAME["lfm2_vl"]
    model, inputs = build(kind), prompts(kind, [1])
    cut = {name: value[:, :-4] if name in ("input_ids", "attention_mask") else value for name, value in inputs.items()}
    assert int(cut["input_ids"][0, -1]) == MEDIA
    with pytest.raises(UnsupportedModelError, match="must end in text"):
        model.generate(**cut, **OPTIONS, custom_generate=lookups())
