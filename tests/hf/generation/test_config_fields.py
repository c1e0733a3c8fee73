"""Every field of `GenerationConfig`, wherever it is set: the output of plain `generate`, or an error by name.

In the model's own generation_config, in the call's, and among the call's arguments.
"""

import inspect
from typing import Any

import pytest
import torch
from helpers.text_tokenizers import byte_level
from helpers.tiny import noisy_copy, prompt, tiny_llama
from transformers import CompileConfig, GenerationConfig, WatermarkingConfig

import treespec
from treespec.errors import UnsupportedModeError
from treespec.hf.generation.config_fields import FIELDS, Refused, check_fields, class_defaults
from treespec.lab.selftest.drafters import Planted

TOKENIZER = byte_level(320)
TARGET = tiny_llama(len(TOKENIZER))
DRAFT = noisy_copy(TARGET)
IDS = prompt(2, vocab_size=len(TOKENIZER))
PLAIN = TARGET.generate(IDS, max_new_tokens=12, do_sample=False)
THIRD = PLAIN[:, 14].tolist()
TEXTS = [[text for token in row if (text := TOKENIZER.decode([token])).isascii()] for row in PLAIN[:, 14:].tolist()]
EARLY, LATE = [row[0] for row in TEXTS], [row[-1] for row in TEXTS]
"""Stop strings that each row meets: a batch without an end token ends with its last row."""

SAMPLED, RETURNED = {"do_sample": True}, {"return_dict_in_generate": True}
VALUES: dict[str, Any] = {"max_length": 17, "max_new_tokens": 5, "min_length": 18, "min_new_tokens": 5}
VALUES |= {"max_time": 1e-9, "stop_strings": EARLY}
VALUES |= {"do_sample": True, "temperature": 1e-4, "top_k": 1, "top_p": 1e-6, "min_p": 1.0}
VALUES |= {"top_h": 1e-6, "typical_p": 1e-6, "epsilon_cutoff": 0.999, "eta_cutoff": 0.999, "repetition_penalty": 8.0}
VALUES |= {"encoder_repetition_penalty": 8.0, "no_repeat_ngram_size": 1, "encoder_no_repeat_ngram_size": 1}
VALUES |= {"bad_words_ids": [[token] for token in THIRD], "renormalize_logits": True, "forced_bos_token_id": 5}
VALUES |= {"forced_eos_token_id": 5, "remove_invalid_values": True, "exponential_decay_length_penalty": (2, 2.0)}
VALUES |= {"suppress_tokens": THIRD, "begin_suppress_tokens": PLAIN[:, 12].tolist(), "num_return_sequences": 2}
VALUES |= {"sequence_bias": [[[THIRD[0]], -30.0]], "watermarking_config": WatermarkingConfig(bias=8.0)}
VALUES |= {"output_hidden_states": True, "output_scores": True, "output_logits": True, "return_dict_in_generate": True}
VALUES |= {"pad_token_id": 7, "bos_token_id": 7, "eos_token_id": THIRD}
# Without effect
VALUES |= {"early_stopping": True, "use_cache": False, "cache_config": {"nbits": 4}, "max_cache_len": 90}
VALUES |= {"length_penalty": 3.0, "decoder_start_token_id": 5, "num_assistant_tokens": 3, "disable_compile": True}
VALUES |= {"num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.9, "low_memory": True}
VALUES |= {"max_matching_ngram_size": 3, "assistant_lookbehind": 3, "target_lookbehind": 3, "num_beam_groups": 2}
VALUES |= {"assistant_ensemble_weight": 0.5, "speculation_type": "dflash", "compile_config": CompileConfig()}
VALUES |= {"continuous_batching_config": {}, "diversity_penalty": 0.5, "prefill_chunk_size": 5}
VALUES |= {"transformers_version": "4.0"}
# Refused
VALUES |= {"num_beams": 2, "use_mtp": True, "cache_implementation": "quantized", "token_healing": True}
VALUES |= {"guidance_scale": 1.5, "output_attentions": True, "is_assistant": True, "assistant_model": DRAFT}
VALUES |= {"prompt_lookup_num_tokens": 3, "assistant_early_exit": 1, "penalty_alpha": 0.6, "dola_layers": "low"}
VALUES |= {"constraints": [], "force_words_ids": [[3]]}
ALSO: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff"), SAMPLED),
    **{name: SAMPLED | {"temperature": 1e-4} for name in ("do_sample", "eta_cutoff")},
    **{f"output_{name}": RETURNED for name in ("hidden_states", "scores", "logits", "attentions")},
    **{f"min_{name}": {"eos_token_id": THIRD} for name in ("length", "new_tokens")},
    "exponential_decay_length_penalty": {"eos_token_id": 5},
    "num_return_sequences": SAMPLED | {"top_k": 1},
    "pad_token_id": {"eos_token_id": THIRD[0]},
    "max_cache_len": {"cache_implementation": "static"},
    "penalty_alpha": {"top_k": 4},
}
"""Further fields that one needs to have an effect, or so that sampled text has one outcome."""
EXAMPLES = {name: {name: value} | ALSO.get(name, {}) for name, value in VALUES.items()}
CHANGES_NOTHING = {
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "epsilon_cutoff", "eta_cutoff"),
    *("renormalize_logits", "remove_invalid_values", "bos_token_id"),
    *("forced_bos_token_id", "encoder_no_repeat_ngram_size"),
}
"""Examples that leave this greedy text as it is; most of them so that sampled text has one outcome."""
KINDS = {name: effect if isinstance(effect, str) else "refused" for name, effect in FIELDS.items()}


def fields_of(kind):
    return [name for name, found in KINDS.items() if found == kind]


def configured(fields):
    """A generation_config with fields as a file sets them, without the checks of its class."""
    config = GenerationConfig(pad_token_id=0)
    vars(config).update(fields)
    return config


@pytest.fixture
def own_config(monkeypatch):
    """Puts fields into the target's own generation_config."""
    return lambda fields: monkeypatch.setattr(TARGET, "generation_config", configured(fields))


def by_trees(plain=None, **options):
    """Drafts are those of a model, or of a greedy text that is known, which costs no passes."""
    drafter = DRAFT
    if plain is not None and not options.get("do_sample"):
        texts = plain if isinstance(plain, torch.Tensor) else plain.sequences
        drafter = Planted(texts[:, IDS.shape[1] :].tolist(), len(TOKENIZER))
    speculation = treespec.TreeSpeculation(drafter, tree=8, seed=0)
    return treespec.generate(TARGET, IDS, speculation, tokenizer=TOKENIZER, **options)


def plainly(name, **options):
    return TARGET.generate(IDS, **options, **({"tokenizer": TOKENIZER} if name == "stop_strings" else {}))


def options_without(name):
    """A length and greedy decoding, where the example does not say otherwise."""
    given = EXAMPLES[name]
    length = {} if given.keys() & {"max_length", "max_new_tokens"} else {"max_new_tokens": 12}
    return length | ({} if "do_sample" in given else {"do_sample": False})


def assert_same(out, plain):
    if isinstance(plain, torch.Tensor):
        assert torch.equal(out, plain)
        return
    assert torch.equal(out.sequences, plain.sequences)
    ours, theirs = ({name for name in ("scores", "logits", "hidden_states") if name in x} for x in (out, plain))
    assert ours == theirs


def test_every_field_of_the_installed_class_is_in_the_table_and_has_an_example():
    assert class_defaults().keys() - FIELDS.keys() == set()
    assert EXAMPLES.keys() == FIELDS.keys()


def test_every_argument_of_generate_is_known():
    """transformers drops those of its own that a `custom_generate` object does not take: none may change the text."""
    prepared = {"inputs", "generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn"}
    of_guidance = {"negative_prompt_ids", "negative_prompt_attention_mask"}
    others = {"custom_generate", "streamer", "synced_gpus", "assistant_model", "use_model_defaults", "kwargs"}
    assert inspect.signature(TARGET.generate).parameters.keys() - prepared - of_guidance - others == set()


@pytest.mark.parametrize("name", [*fields_of("served"), *fields_of("no effect")])
def test_it_does_what_plain_generate_does_wherever_it_is_set(own_config, name):
    without, given = options_without(name), EXAMPLES[name] | options_without(name)
    plain = plainly(name, **given)
    known = None if given["do_sample"] else plain
    assert_same(by_trees(known, **given), plain)
    assert_same(by_trees(known, generation_config=configured(given)), plain)
    own_config(EXAMPLES[name])
    assert_same(by_trees(plain if KINDS[name] == "no effect" else None, **without), plain)
    is_changed = not isinstance(plain, torch.Tensor) or not torch.equal(plain, PLAIN)
    assert is_changed == (KINDS[name] == "served" and name not in CHANGES_NOTHING)


@pytest.mark.parametrize("name", fields_of("refused"))
def test_what_is_refused_is_refused_by_name(own_config, name):
    given = EXAMPLES[name]
    for options in (given, {"generation_config": configured(given)}):
        with pytest.raises(UnsupportedModeError, match=f"^{name}="):
            by_trees(**options)
    own_config(given)
    with pytest.raises(UnsupportedModeError, match=f"^{name}="):
        by_trees()
    effect = FIELDS[name]
    assert isinstance(effect, Refused)
    for harmless in (None, *effect.harmless):
        check_fields(given | {name: harmless})


def test_stop_strings_in_both_configs_are_the_calls(own_config):
    given = EXAMPLES["stop_strings"] | options_without("stop_strings")
    plain = plainly("stop_strings", **given)
    own_config({"stop_strings": LATE})
    assert not torch.equal(plainly("stop_strings", **options_without("stop_strings")), plain)
    assert_same(by_trees(generation_config=configured(given)), plain)
    assert_same(by_trees(**given), plain)


def test_a_field_that_a_newer_transformers_has(monkeypatch):
    defaults = class_defaults() | {"sharpen": (None, 1.0)}
    monkeypatch.setattr("treespec.hf.generation.config_fields.class_defaults", lambda: defaults)
    for unset in ({}, {"sharpen": None}, {"sharpen": 1.0}):
        check_fields(unset)
    with pytest.raises(UnsupportedModeError, match=r"sharpen=2.0 .* does not know"):
        by_trees(sharpen=2.0)


def test_entries_that_the_class_does_not_have_are_ignored_as_plain_generate_ignores_them(own_config):
    own_config({"user_token_id": 195})
    options = {"max_new_tokens": 12, "do_sample": False}
    assert torch.equal(by_trees(**options), PLAIN)
