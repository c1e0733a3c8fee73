"""Pairs of processors that a call of `generate` can build: what one does to the other is as in plain decoding."""

from itertools import cycle
from typing import Any

import pytest
import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama
from transformers import WatermarkingConfig
from transformers.generation import logits_process

import treespec
from treespec.errors import LogitsError
from treespec.lab.selftest.drafters import Planted

SIZE, END, NUM_NEW = 24, 5, 8
TARGET = tiny_llama(SIZE, num_layers=1)
DRAFT = noisy_copy(TARGET)
COMMON = {"max_new_tokens": NUM_NEW, "eos_token_id": END, "pad_token_id": 0}


def multiples_of_two_or_three(row, text):
    """Depends on the row and on the last token, and forbids what others force: 20 and 13."""
    return [token for token in range(SIZE) if token % (2 + row) == int(text[-1]) % 2 and token not in (13, 20)]


OPTIONS: dict[str, dict[str, Any]] = {
    "SequenceBias": {"sequence_bias": [[[7], 4.0], [[8, 9], -30.0]]},
    "EncoderRepetitionPenalty": {"encoder_repetition_penalty": 2.0},
    "RepetitionPenalty": {"repetition_penalty": 1.7},
    "NoRepeatNGram": {"no_repeat_ngram_size": 2},
    "EncoderNoRepeatNGram": {"encoder_no_repeat_ngram_size": 1},
    "NoBadWords": {"bad_words_ids": [[8], [20], [9, 10]]},
    "MinLength": {"min_length": 8},
    "MinNewTokensLength": {"min_new_tokens": 4},
    "PrefixConstrained": {"prefix_allowed_tokens_fn": multiples_of_two_or_three},
    "ForcedBOSToken": {"forced_bos_token_id": 20},
    "ForcedEOSToken": {"forced_eos_token_id": 13},
    "InfNanRemove": {"remove_invalid_values": True},
    "ExponentialDecay": {"exponential_decay_length_penalty": (3, 1.5)},
    "SuppressTokens": {"suppress_tokens": [3, 4, 6]},
    "SuppressTokensAtBegin": {"begin_suppress_tokens": [2, 11, 20]},
    "Watermark": {"watermarking_config": WatermarkingConfig(bias=3.0, greenlist_ratio=0.4)},
    "LogitNormalization": {"renormalize_logits": True},
}
WARPERS: dict[str, dict[str, Any]] = {
    "Temperature": {"temperature": 0.6},
    "TopH": {"top_h": 0.5},
    "TopK": {"top_k": 7},
    "TopP": {"top_p": 0.7},
    "MinP": {"min_p": 0.1},
    "Typical": {"typical_p": 0.6},
    "Epsilon": {"epsilon_cutoff": 0.05},
    "Eta": {"eta_cutoff": 0.05},
}
SAMPLED = {"do_sample": True, "top_k": 0, "output_scores": True, "output_logits": True, "return_dict_in_generate": True}
REFUSED = {"UnbatchedClassifierFreeGuidance", "SynthIDTextWatermark"}
OF_OTHER_MODES = {
    "AlternatingCodebooks",
    "ClassifierFreeGuidance",
    "DiaClassifierFreeGuidance",
    "DiaEOSChannelFilter",
} | {*("DiaEOSDelayPattern", "WhisperTimeStamp", "WhisperNoSpeechDetection", "BarkEosPrioritizer")}
"""Made by the `generate` of single encoder-decoder or sound models."""


def by_trees(ids, options, drafter=DRAFT):
    speculation = treespec.TreeSpeculation(drafter, tree=8, seed=0)
    return TARGET.generate(ids, **options, custom_generate=speculation)


def prepared(ids, options):
    """The processors that `generate` makes."""
    found = []

    def catch(model, input_ids, logits_processor, **kwargs):
        found.append(logits_processor)
        return input_ids

    TARGET.generate(ids, **options, custom_generate=catch)
    return found[0]


def test_no_processor_of_transformers_is_left_out():
    endings = ("LogitsProcessor", "LogitsWarper", "LengthPenalty", "Normalization")
    names = [name for name in vars(logits_process) if name.endswith(endings) and name not in endings]
    short = {name.removesuffix("LogitsProcessor").removesuffix("LogitsWarper") for name in names}
    assert {
        name.removesuffix("LengthPenalty") for name in short
    } - OF_OTHER_MODES - REFUSED == OPTIONS.keys() | WARPERS.keys()


@pytest.mark.parametrize("first", OPTIONS)
def test_greedy_pairs_give_the_text_of_plain_generate(first):
    ids = prompt(2, 1, SIZE)  # Only after a single token a first one is forced.
    for second in OPTIONS:
        if second < first:
            continue
        options = COMMON | OPTIONS[first] | OPTIONS[second] | {"do_sample": False}
        plain = TARGET.generate(ids, **options, output_scores=True, return_dict_in_generate=True)
        drafter = Planted(plain.sequences[:, 1:].tolist(), SIZE)
        if any(bool(scores.isnan().any()) for scores in plain.scores):
            # Older transformers make NaN of the score of a forbidden end token, and take it for the best.
            assert "ExponentialDecay" in (first, second)
            with pytest.raises(LogitsError, match="holds NaN"):
                by_trees(ids, options, drafter)
        else:
            assert torch.equal(by_trees(ids, options, drafter), plain.sequences), (first, second)


def test_warped_scores_are_those_of_plain_generate():
    """Warpers look at the scores alone: each meets a few of the others."""
    ids = prompt(1, 1, SIZE)
    for first, second in zip(cycle(WARPERS), OPTIONS, strict=False):
        options = COMMON | SAMPLED | OPTIONS[second] | WARPERS[first]
        out = by_trees(ids, options)
        processors = prepared(ids, options)
        for step, (logits, scores) in enumerate(zip(out.logits, out.scores, strict=True)):
            expected = processors(out.sequences[:, : 1 + step], logits.clone())
            torch.testing.assert_close(scores, expected, msg=f"{first}, {second}")
