"""Where speculation is slower, `speed_up` lets transformers decode: the same output, what is counted, and when."""

import pytest
import torch
from helpers.head_runs import left_padded
from helpers.tiny import tiny_llama
from transformers import TextIteratorStreamer

import treespec
from treespec.engine.stats import PHASES, SpeculationStats
from treespec.errors import UnsupportedModeError
from treespec.speedup import plain


def stats(tokens_per_pass, other=1.0):
    """A hundred steps whose passes took a second, and speculation's own work `other`."""
    seconds = dict.fromkeys(PHASES, 0.0) | {"target": 1.0, "draft": other}
    return SpeculationStats(num_drafts=100, num_emitted_tokens=int(100 * tokens_per_pass), seconds=seconds)


def test_plain_decoding_is_tried_only_where_steps_bring_too_little():
    way = plain.FasterWay()
    assert not way.is_plain
    way.learn(False, 2.0, stats(2.5), 1)
    assert not way.is_plain
    way.learn(False, 2.0, stats(1.5), 1)
    assert way.is_plain
    way.learn(True, 3.0, stats(1.0), 1)  # Slower than speculation after all.
    assert not way.is_plain


def test_the_slower_way_is_tried_again_when_it_costs_little():
    way, tried = plain.FasterWay(), []
    for _ in range(200):
        is_plain = way.is_plain
        tried.append(is_plain)
        way.learn(is_plain, 1.0 if is_plain else 1.2, stats(1.0), 1)
    assert tried[:3] == [False, True, True]
    assert 8 <= tried.count(False) <= 10
    slow = plain.FasterWay()
    slow.learn(False, 2.0, stats(0.05), 1)
    assert not slow.is_plain  # Five tokens say nothing.


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
    try:
        for number in range(3):
            torch.manual_seed(number)
            expected = model.generate(**inputs, max_new_tokens=20, do_sample=do_sample)
            torch.manual_seed(number)
            model.train()
            out = model.generate(**inputs, max_new_tokens=20, do_sample=do_sample, custom_generate=speculation)
            model.eval()
            assert out.equal(expected)
        rows = [row.tolist() for row in expected[:, 9:]]
        emitted = sum(row.index(7) + 1 if 7 in row else len(row) for row in rows)
        assert speculation.stats.num_emitted_tokens == speculation.stats.num_drafts == emitted
        assert speculation.stats.num_target_passes == len(rows[0])
        assert "1.00 per pass" in str(speculation)
        assert treespec.diagnose(speculation).num_tokens == emitted
    finally:
        speculation.restore()


@pytest.mark.parametrize("options", [{"tree": 4}, {"record_steps": True}, {"seed": 3}], ids=str)
def test_what_speculation_alone_has_is_had(model, always_plain, options):
    speculation = treespec.speed_up(model, **options)
    model.generate(**left_padded([9]), max_new_tokens=12, do_sample=False, custom_generate=speculation)
    assert speculation.stats.seconds["verify"] > 0
    speculation.restore()


def test_streams_are_served_and_what_is_refused_stays_refused(model, always_plain):
    speculation = treespec.speed_up(model)
    streamer = TextIteratorStreamer(Decoder())  # pyright: ignore[reportArgumentType]
    treespec.generate(model, left_padded([9])["input_ids"], speculation, streamer=streamer, max_new_tokens=6)
    assert len(list(streamer)) > 1
    with pytest.raises(UnsupportedModeError):
        model.generate(**left_padded([9]), max_new_tokens=6, num_beams=2, custom_generate=speculation)
    speculation.restore()


class Decoder:
    """What a streamer asks of a tokenizer."""

    def decode(self, tokens, **_):
        return f"{tokens}\n"
