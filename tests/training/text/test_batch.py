"""Text that a model writes itself is its own continuation after its own template."""

import re

import pytest
import torch
from helpers.toy_models import TableLM, ToyScorer
from helpers.written import END, TARGET, TOKENIZER, WRITING, spell, split

from treespec.errors import ConfigError
from treespec.hf import TreeScorer
from treespec.testing import g_test
from treespec.training.text.batch import Message, Writing, draw, write_batch
from treespec.training.text.chat import Turns, chat_turns


def test_texts_are_the_models_own():
    turns, given = chat_turns(TOKENIZER), spell("What is a licence?")
    counts, messages = [], [Message(given, is_open=False), Message(), Message(), Message()]
    texts = write_batch(TreeScorer(TARGET), turns, [END], messages, WRITING, on_tokens=counts.append)
    assert int(texts.lengths.sum()) == len(texts.tokens) == len(texts.top)
    written = split(texts)
    assert len(written) == 4
    num_given = 3 * len(turns.opening) + len([*turns.opening, *given, *turns.reply])
    assert sum(counts) == len(texts.tokens) - num_given
    for number, (text, top) in enumerate(written):
        ids = text.tolist()
        assert ids[: len(turns.opening)] == turns.opening
        assert len(ids) <= WRITING.max_length
        plain = TARGET(text.unsqueeze(0)).logits[0]
        generated = top[:, 0] >= 0
        assert torch.equal(top[generated], plain.topk(3).indices[generated])
        prompt = [*turns.opening, *given, *turns.reply] if number == 0 else turns.opening
        assert generated.tolist() == [len(prompt) - 1 <= i < len(ids) - 1 for i in range(len(ids))]
        if number:
            message = re.match(r"<s>user\n(.*?)</s>\n<s>assistant\n", TOKENIZER.decode(ids), flags=re.DOTALL)[1]
            start = next(i for i in range(len(ids)) if ids[i : i + len(turns.reply)] == turns.reply)
            assert start - len(turns.opening) <= WRITING.max_message
            assert (message == "") == (start == len(turns.opening))
            start += len(turns.reply)
        else:
            start = len(prompt)
        if number % 2 == 0:  # a greedy answer
            options = {"do_sample": False, "max_length": WRITING.max_length, "max_new_tokens": None}
            assert TARGET.generate(text[:start].unsqueeze(0), **options)[0].tolist() == ids
        assert END not in ids[start:-1]
        assert len(ids) == WRITING.max_length or ids[-1] == END


def test_without_a_template_an_opening_begins_the_text():
    message, writing = Message([3, 4]), Writing(temperatures=(1.0,), max_length=12, num_candidates=2)
    texts = write_batch(ToyScorer(TableLM(6)), Turns([1], []), [0], [message] * 3, writing)
    assert all(text.tolist()[:3] == [1, 3, 4] for text, _ in split(texts))


def test_rows_that_leave_do_not_change_the_others():
    """A scorer that rejects holes and repeated work; texts of a model without a template end one by one."""
    scorer = ToyScorer(TableLM(6))
    writing = Writing(temperatures=(1.0,), max_length=40, batch_size=1, num_candidates=2)
    texts = write_batch(scorer, Turns([1], []), [0], [Message()] * 24, writing)
    assert len(set(texts.lengths.tolist())) > 5
    for text, top in split(texts):
        for end in range(1, len(text)):
            expected = scorer.model.logits(tuple(text[:end].tolist())).topk(2).indices
            assert torch.equal(top[end - 1], expected)


def test_a_finished_text_waits_no_longer_than_the_model_has_positions():
    """One long message among 31 short ones ends its text first, and is too few to leave for by itself."""
    writing = Writing(temperatures=(1.0,), max_length=16, num_candidates=2)
    messages = [Message([4] * length, is_open=False) for length in (8, *[1] * 31)]
    scorers = [ToyScorer(TableLM(6), max_positions=limit) for limit in (15, None)]
    limited, free = (write_batch(scorer, Turns([1], [2, 3]), [7], messages, writing) for scorer in scorers)
    assert limited.lengths.tolist() == free.lengths.tolist() == [16] * 32
    with pytest.raises(ConfigError, match="max_length"):
        Writing(max_length=1)


def test_a_text_ends_where_it_is_enough():
    writing = Writing(temperatures=(1.0,), max_length=40, num_candidates=2)
    texts = write_batch(
        ToyScorer(TableLM(6)), Turns([1], []), [], [Message()] * 8, writing, is_enough=lambda ids: ids.count(4) == 4
    )
    written = [text.tolist() for text, _ in split(texts)]
    assert any(len(ids) < 40 for ids in written)
    assert all(ids.count(4) == 4 and ids[-1] == 4 if len(ids) < 40 else ids[:-1].count(4) < 4 for ids in written)


def test_draws_follow_the_distribution_at_every_temperature():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    temperatures = torch.tensor([0.0, 0.5, 1.0]).repeat(20_000)
    drawn = draw(logits.expand(60_000, 4).contiguous(), temperatures, torch.Generator().manual_seed(0)).view(-1, 3)
    assert (drawn[:, 0] == 3).all()
    for column, temperature in ((1, 0.5), (2, 1.0)):
        probs = dict(enumerate((logits / temperature).softmax(0).tolist()))
        counts = dict(enumerate(drawn[:, column].bincount(minlength=4).tolist()))
        assert g_test(counts, probs) > 1e-3


def test_options_out_of_range_are_refused():
    for options in ({"max_length": 0}, {"batch_size": True}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            Writing(**options)
    for options in ({"temperatures": ()}, {"temperatures": (-1.0,)}, {"message_temperature": -0.1}):
        with pytest.raises(ConfigError, match="temperature"):
            Writing(**options)
