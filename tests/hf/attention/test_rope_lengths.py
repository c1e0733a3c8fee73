"""Rope frequencies that depend on the text's length: output is plain `generate`'s on both sides of the threshold."""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.tiny import identical, lookups, padded
from helpers.zoo import BY_NAME, SIZES, Architecture, build
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, LogitsProcessor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from treespec import TokenRecycling, TreeSpeculation, check
from treespec.errors import UnsupportedModeError, UnsupportedModelError
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.hf.introspect import CACHE_NAME, model_facts
from treespec.hf.models.capability import undisturbed
from treespec.hf.models.make_scorer import READS_ALL_AGAIN

THRESHOLD = 24
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": THRESHOLD,
    "factor": 4.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0 + i for i in range(4)],
}
MIXED = {"full_attention": DYNAMIC, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
MSCALE = LONG | {"long_mscale": 1.3, "short_mscale": 1.1}
SHORT, READ_AGAIN_AFTER = {"max_position_embeddings": THRESHOLD}, {"original_max_position_embeddings": THRESHOLD}
WINDOWS = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("llama", {"rope_parameters": DYNAMIC} | SHORT),
    "longrope": ("llama", {"rope_parameters": LONG}),
    "by layer type": ("gemma3_text", {"rope_parameters": MIXED} | SHORT | WINDOWS),
    "reread, mscale": ("phimoe", {"rope_parameters": MSCALE, "num_local_experts": 2}),
    "reread": ("phi3", {"rope_parameters": LONG} | READ_AGAIN_AFTER),
}
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def fresh(name: str) -> Any:
    model_type, settings = deepcopy(MODELS[name])  # Configurations change what they are given.
    return build(Architecture(model_type, {"head_dim": 8, "num_key_value_heads": 4} | settings))


@cache
def shared(name: str) -> tuple[Any, list[tuple[nn.Module, dict[str, Any], dict[str, torch.Tensor]]]]:
    """A model that has been checked once, with its rotary embeddings' first attributes and buffers."""
    model, kept = fresh(name), []
    for module in model.modules():
        if "Rotary" in type(module).__name__:
            attributes = {key: value for key, value in vars(module).items() if key != "_buffers"}
            kept.append((module, attributes, {key: buffer.clone() for key, buffer in module._buffers.items()}))
    assert kept
    return model, kept


def tiny(name: str) -> Any:
    """A model with the frequencies of a fresh one."""
    model, kept = shared(name)
    for module, attributes, buffers in kept:
        for key in vars(module).keys() - attributes.keys() - {"_buffers"}:
            del vars(module)[key]
        vars(module).update(attributes)
        module._buffers.clear()
        module._buffers.update({key: buffer.clone() for key, buffer in buffers.items()})
    return model


def prompts(*lengths: int) -> dict[str, torch.Tensor]:
    """Left-padded rows."""
    return padded(zoo.prompts(len(lengths), max(lengths)), [max(lengths) - length for length in lengths])


def decoded(name: str, inputs: dict[str, Any], speculation: Any = None, **options: Any) -> torch.Tensor:
    """As by a fresh model: dynamic NTK keeps the frequencies of the longest text before."""
    return tiny(name).generate(**inputs, **OPTIONS | options, custom_generate=speculation)


def by_trees(name: str, inputs: dict[str, Any], **options: Any) -> Any:
    """The statistics of the second of two calls whose output is plain `generate`'s."""
    return identical(lambda: tiny(name), inputs, times=2, **OPTIONS | options)


@pytest.mark.filterwarnings("ignore:.*one token at a time")
@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        *((name, (14, 9, 12)) for name in MODELS),
        *product(["dynamic", "reread"], [(THRESHOLD,), (THRESHOLD + 3, 9)]),
    ],
    ids=str,
)
def test_the_longest_row_of_a_batch_decides(name, lengths):
    """One text too; the rows of the batch of three end at different lengths."""
    by_trees(name, prompts(*lengths), eos_token_id=list(range(3, 15)) if len(lengths) == 3 else None)


@pytest.mark.parametrize("name", [name for name in MODELS if READS_ALL_AGAIN or "reread" not in name])
def test_trees_on_both_sides_of_the_threshold(name):
    inputs = prompts(6)
    speculation = lookups(record_steps=True)
    identical(lambda: tiny(name), inputs, speculation, times=2, **OPTIONS)
    length, is_beyond = 6, set()
    for step in speculation.steps:
        if step.trees[0].num_nodes > 1:
            is_beyond.add(length > THRESHOLD)
        length += len(step.emitted[0])
    assert is_beyond == {False, True}


@pytest.mark.filterwarnings("ignore:.*one token at a time")
def test_texts_that_are_never_read_again_decode_by_trees():
    """Those that end within the threshold, and those that begin beyond it."""
    assert by_trees("reread", prompts(6), max_new_tokens=8).num_draft_tokens > 0
    assert by_trees("reread", prompts(THRESHOLD + 2)).num_draft_tokens > 0


READ_AGAIN = pytest.mark.skipif(not READS_ALL_AGAIN, reason="decodes plainly")


@pytest.mark.parametrize(
    ("name", "length", "num_cached"),
    [("dynamic", 32, 5), ("dynamic", 32, 24), ("longrope", 32, 5), pytest.param("reread", 8, 5, marks=READ_AGAIN)],
)
def test_a_filled_cache_is_continued(name, length, num_cached):
    """From a text's first tokens on."""
    inputs, speculation, found = prompts(length), lookups(), []
    for each in (None, speculation, speculation):
        model, cache = tiny(name), DynamicCache()
        model(inputs["input_ids"][:, :num_cached], **{CACHE_NAME: cache})
        found.append(model.generate(**inputs, **OPTIONS, **{CACHE_NAME: cache}, custom_generate=each))
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])


def test_a_static_cache_and_a_model_that_is_as_before_afterwards():
    """Dynamic NTK keeps the frequencies of the longest text before."""
    model, inputs, speculation = fresh("dynamic"), prompts(6), lookups()
    plain = model.generate(**inputs, **OPTIONS)
    for options in ({}, {"cache_implementation": "static", "disable_compile": True}):
        assert torch.equal(model.generate(**inputs, **OPTIONS, **options, custom_generate=speculation), plain)
        assert "forward" not in vars(model.model.rotary_emb)
        assert torch.equal(model.generate(**inputs, **OPTIONS), plain)


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_a_model_with_states_decodes_longer_texts_plainly():
    known = BY_NAME["qwen3_next"]

    def fresh_one() -> Any:
        return build(
            replace(known, options={**known.options, **SHORT, "head_dim": 32, "rope_parameters": dict(DYNAMIC)})
        )

    assert identical(fresh_one, prompts(6), **OPTIONS).num_draft_tokens == 0


@pytest.mark.parametrize("option", [{"use_cache": False}, {"prefill_chunk_size": 5}], ids=str)
def test_options_that_give_tokens_other_frequencies_are_refused_by_name(option):
    with pytest.raises(UnsupportedModeError, match=rf"{next(iter(option))}.* would change the passes"):
        decoded("longrope", prompts(6), lookups(), **option)
    short = {**option, "max_new_tokens": 8}
    assert torch.equal(decoded("longrope", prompts(6), lookups(), **short), decoded("longrope", prompts(6), **short))


def test_compiled_passes_are_refused_by_name():
    speculation = TreeSpeculation(TokenRecycling(), tree=4, compile=True)
    with pytest.raises(UnsupportedModelError, match="the length of texts beyond 24 tokens"):
        decoded("longrope", prompts(6), speculation)
    rope = RopeByLength(tiny("longrope"))
    assert [rope.is_exceeded_by(longest) for longest in (THRESHOLD, THRESHOLD + 1, None)] == [False, True, True]


@pytest.mark.filterwarnings("ignore:.*one token at a time")
def test_a_batch_that_is_read_again_takes_no_filled_cache():
    model, cache, inputs = tiny("reread"), DynamicCache(), prompts(8, 8)
    model(inputs["input_ids"][:, :5], **{CACHE_NAME: cache})
    with pytest.raises(UnsupportedModelError, match=r"filled cache.*once it is longer than 24 tokens"):
        model.generate(**inputs, **OPTIONS, **{CACHE_NAME: cache}, custom_generate=lookups())


class Forced(LogitsProcessor):
    """Goes along a given text."""

    def __init__(self, text: torch.Tensor) -> None:
        self.text = text

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).index_fill(1, self.text[input_ids.shape[1]], 0)


@READ_AGAIN
def test_sampled_texts_that_are_read_again_have_the_logits_of_plain_passes():
    inputs, options = prompts(THRESHOLD), OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
    speculation = lookups(seed=0)
    for _ in range(2):
        ours: Any = tiny("reread").generate(**inputs, **options | {"do_sample": True}, custom_generate=speculation)
        plain: Any = tiny("reread").generate(**inputs, **options, logits_processor=[Forced(ours.sequences[0])])
        torch.testing.assert_close(ours.logits, plain.logits, atol=1e-4, rtol=1e-4)
    assert speculation.stats.num_accepted_tokens > 0


def test_passes_of_checks_do_not_change_the_frequencies_of_threads_that_decode_meanwhile():
    model = fresh("dynamic")
    rotary = model.model.rotary_emb
    before = rotary.inv_freq.clone()
    with undisturbed(model_facts(model)):
        model(prompts(THRESHOLD + 9)["input_ids"])
        assert torch.equal(rotary.inv_freq, before)
    model(prompts(THRESHOLD + 9)["input_ids"])
    assert not torch.equal(rotary.inv_freq, before)


def test_the_self_test_sees_frequencies_of_another_length(monkeypatch):
    model = fresh("longrope")
    assert check(model, only=["rope threshold", "cache after many rounds"]).is_right
    monkeypatch.setattr(RopeByLength, "applied", lambda self, position_ids: nullcontext())
    found = check(model, only=["rope threshold"])
    assert not found.is_right
    assert "across 24, where the rope frequencies change, differs" in str(found)


@pytest.mark.parametrize("rope_type", ROPE_INIT_FUNCTIONS)
def test_every_rope_type_that_reads_the_length_is_known(rope_type):
    settings: dict[str, Any] = {**LONG, "rope_type": rope_type, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SIZES | {"rope_parameters": settings, "max_position_embeddings": 64})
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    positions = torch.tensor([[1, 2]]), torch.tensor([[1, 5000]])
    near, far = (model.model.rotary_emb(torch.zeros(1), ids)[0][:, 0] for ids in positions)
    assert bool(RopeByLength(model)) == (not torch.equal(near, far))
