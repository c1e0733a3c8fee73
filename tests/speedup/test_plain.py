"""Where speculation is slower, `speed_up` lets transformers decode: the same output, what is counted, and when."""

import contextlib
from dataclasses import fields

import pytest
import torch
from helpers.head_runs import left_padded
from helpers.text_tokenizers import byte_level
from helpers.tiny import tiny_llama
from transformers import StoppingCriteria, StoppingCriteriaList

import treespec
from treespec.engine.stats import PHASES, SpeculationStats
from treespec.errors import UnsupportedModeError
from treespec.hf.generation.call import Options
from treespec.literature import ThresholdAcceptance
from treespec.speedup import plain


def stats(tokens_per_pass, other=1.0):
    """A hundred steps whose passes took a second, and speculation's own work `other`."""
    seconds = dict.fromkeys(PHASES, 0.0) | {"target": 1.0, "draft": other}
    num_emitted = int(100 * tokens_per_pass)
    return SpeculationStats(num_drafts=100, num_target_passes=100, num_emitted_tokens=num_emitted, seconds=seconds)


def warm():
    """After a first call that was slow."""
    way = plain.FasterWay()
    way.learn(False, 99.0, stats(1.0), 1)
    return way


def learn(way, seconds, tokens_per_pass):
    """A turn of calls."""
    for _ in range(plain.TURN):
        way.learn(way.is_plain, seconds, stats(tokens_per_pass), 1)


def ways_of_calls(count, seconds):
    """Whether each of some calls was plain, which took `seconds` by its number and that."""
    way, tried = warm(), []
    for number in range(count):
        tried.append(way.is_plain)
        way.learn(way.is_plain, seconds(number, way.is_plain), stats(1.0), 1)
    return tried


def test_plain_decoding_is_tried_only_where_steps_bring_too_little():
    way = warm()
    assert not way.is_plain
    learn(way, 2.0, 2.5)
    assert not way.is_plain
    learn(way, 2.0, 1.5)
    assert way.is_plain
    learn(way, 3.0, 1.0)  # Slower than speculation after all.
    assert not way.is_plain
    way = warm()
    way.learn(False, 9.0, stats(1.0), 1)
    assert not way.is_plain, "one call says little"


def test_prompts_do_not_count():
    way, long = warm(), stats(1.0)
    long.seconds["prefill"] = 50.0
    learn(way, 2.0, 1.5)
    for _ in range(plain.TURN):
        way.learn(True, 51.0, long, 1)
    assert way.is_plain


def test_the_slower_way_is_tried_again_when_it_costs_little():
    tried = ways_of_calls(400, lambda number, is_plain: 1.0 if is_plain else 1.2)
    assert tried[:6] == [False, False, False, True, True, True]
    assert 18 <= tried.count(False) <= 30
    slow = warm()
    learn(slow, 2.0, 0.05)
    assert not slow.is_plain  # Five tokens say nothing.


def test_a_way_that_is_fast_now_is_taken_however_slow_it_was():
    tried = ways_of_calls(60, lambda number, is_plain: 2.0 if is_plain else 9.0 if number < 12 else 1.0)
    assert tried[-20:].count(False) >= 15


@pytest.fixture
def model():
    model = tiny_llama()
    model.generation_config.eos_token_id = 7
    return model


@pytest.fixture
def always_plain(monkeypatch):
    monkeypatch.setattr(plain.FasterWay, "is_plain", True)


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
def test_output_is_that_of_generate(model, always_plain, do_sample):
    speculation, inputs = treespec.speed_up(model), left_padded([9, 4, 6])
    expected = inputs["input_ids"]
    try:
        for number in range(2):
            torch.manual_seed(number)
            expected = model.generate(**inputs, max_new_tokens=20, do_sample=do_sample)
            torch.manual_seed(number)
            model.train()
            out = model.generate(**inputs, max_new_tokens=20, do_sample=do_sample, custom_generate=speculation)
            model.eval()
            assert out.equal(expected)
        rows = [row.tolist() for row in expected[:, 9:]]
        emitted = sum(row.index(7) + 1 if 7 in row else len(row) for row in rows)
        assert speculation.stats.num_emitted_tokens == speculation.stats.num_drafts + len(rows) == emitted
        assert speculation.stats.num_target_passes == len(rows[0]) - 1
        assert speculation.stats.seconds["prefill"] > 0
        assert "1.00 per pass" in str(speculation)
        if do_sample:  # It measures the model's passes.
            assert treespec.diagnose(speculation).num_tokens == emitted
    finally:
        speculation.restore()


SERVED_PLAINLY = {"drafter", "tokenizer", "streamer", "stop_strings"}
ALONE = (
    {"tree": 4},
    {"record_steps": True},
    {"progress": True},
    {"seed": 3},
    {"trace": "steps.jsonl"},
    {"observers": [treespec.Observer()]},
    {"verification": ThresholdAcceptance()},
)


def test_every_option_is_known_to_be_served_plainly_or_not():
    """A new option of `TreeSpeculation` may not be left out without a word."""
    alone = {name for options in ALONE for name in options} - {"tree"} | {"policy", "compiled"}
    assert {field.name for field in fields(Options)} == SERVED_PLAINLY | alone


@pytest.mark.parametrize("options", ALONE, ids=lambda options: next(iter(options)))
def test_what_speculation_alone_has_is_had(model, always_plain, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    speculation = treespec.speed_up(model, **options)
    model.generate(**left_padded([9]), max_new_tokens=12, do_sample=False, custom_generate=speculation)
    assert speculation.stats.seconds["verify"] > 0
    with pytest.raises(UnsupportedModeError):  # As ever.
        model.generate(**left_padded([9]), max_new_tokens=6, num_beams=2, custom_generate=speculation)
    speculation.restore()


def test_streams_are_those_of_generate(model, always_plain):
    speculation, inputs = treespec.speed_up(model), left_padded([9])
    expected = Recorded()
    out = model.generate(**inputs, max_new_tokens=12, do_sample=False, streamer=expected)
    for got, tokens in ((Recorded(), expected.tokens), (Failing(), expected.tokens[:3])):
        with contextlib.suppress(KeyboardInterrupt):
            found = treespec.generate(model, inputs, speculation, streamer=got, max_new_tokens=12, do_sample=False)
            assert found.equal(out)
        assert (got.tokens, got.num_ends) == (tokens, 1)
    assert speculation.stats.choices == {"plain": len(out[0]) - 9 - 1}
    speculation.restore()


def test_stop_strings_end_where_generate_ends(always_plain):
    tokenizer = byte_level(300)
    model = tiny_llama(vocab_size=len(tokenizer))
    speculation, inputs = treespec.speed_up(model, tokenizer=tokenizer), left_padded([9])
    options = {**inputs, "max_new_tokens": 16, "do_sample": False}
    decoded = map(tokenizer.decode, model.generate(**options)[0, 12:].tolist())
    strings = [next(text for text in decoded if "\ufffd" not in text)]
    expected = model.generate(**options, tokenizer=tokenizer, stop_strings=strings)
    assert len(expected[0]) < 9 + 16
    assert treespec.generate(model, speculation=speculation, stop_strings=strings, **options).equal(expected)
    assert speculation.stats.choices == {"plain": len(expected[0]) - 9 - 1}
    treespec.generate(model, left_padded([9, 4]), speculation, stop_strings=strings, max_new_tokens=6, do_sample=False)
    assert speculation.stats.seconds["verify"] > 0
    speculation.restore()


class EvenToken(StoppingCriteria):
    """Ends a row after an even token, as a user's own criterion may."""

    def __call__(self, input_ids, scores, **_):
        return input_ids[:, -1] % 2 == 0


def test_rows_that_own_criteria_end_are_counted_to_their_end(model, always_plain):
    speculation, options = treespec.speed_up(model), {"max_new_tokens": 12, "do_sample": False}
    options["stopping_criteria"] = StoppingCriteriaList([EvenToken()])
    for lengths in ([9], [9, 4, 6]):
        inputs = left_padded(lengths)
        out = model.generate(**inputs, **options, custom_generate=speculation)
        assert out.equal(model.generate(**inputs, **options))
        rows = [row.tolist() for row in out[:, 9:]]
        ends = [next((k + 1 for k, token in enumerate(row) if token % 2 == 0 or token == 7), len(row)) for row in rows]
        assert speculation.stats.num_emitted_tokens == sum(ends)
    speculation.restore()


class Recorded:
    """A streamer that records the prompt and the tokens as lists."""

    def __init__(self):
        self.tokens, self.num_ends = [], 0

    def put(self, value):
        self.tokens.append(value.flatten().tolist())

    def end(self):
        self.num_ends += 1


class Failing(Recorded):
    """A reader that goes away after two tokens."""

    def put(self, value):
        super().put(value)
        if len(self.tokens) == 3:
            raise KeyboardInterrupt
