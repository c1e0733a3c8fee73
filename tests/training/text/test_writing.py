"""Text that a model writes itself is its own continuation after its own template."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from helpers.grown_trees import g_test
from helpers.text_tokenizers import byte_level
from helpers.tiny import tiny_llama
from helpers.toy_models import TableLM, ToyScorer
from helpers.written import END, TARGET, TOKENIZER, WRITING, spell, split
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from treespec.errors import CheckpointError, ConfigError
from treespec.hf import TreeScorer
from treespec.training.text.chat import Turns, chat_turns, end_tokens
from treespec.training.text.texts import read_folder, read_texts
from treespec.training.text.writing import Message, Writing, draw, warm_up, write_batch, write_texts


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


def test_the_model_continues_openings(tmp_path):
    turns = chat_turns(TOKENIZER)
    writing = replace(WRITING, batch_size=4, temperatures=(1.0,), max_message=12)
    openings, given = ["Translate", "What is a"], "Hello there"
    texts = write_texts(TARGET, TOKENIZER, 200, tmp_path, prompts=[given], openings=openings, writing=writing)
    written = [text.tolist() for text, _ in split(texts)]
    assert len(written) > 4
    assert starts_with(written[0], [*turns.opening, *spell(given), *turns.reply])
    continued = False
    for number, ids in enumerate(written[1:]):
        opening = [*turns.opening, *spell(openings[number % 2])]
        assert starts_with(ids, opening)
        replies = [i for i in range(len(ids)) if ids[i : i + len(turns.reply)] == turns.reply]
        assert not replies or replies[0] - len(turns.opening) <= writing.max_message
        continued |= bool(replies) and replies[0] > len(opening)
    assert continued
    again = write_texts(TARGET, TOKENIZER, 200, tmp_path, prompts=[given], openings=openings, writing=writing)
    assert torch.equal(again.tokens, texts.tokens)
    with pytest.raises(CheckpointError):
        write_texts(TARGET, TOKENIZER, 200, tmp_path, prompts=[given], openings=openings[::-1], writing=writing)


def test_text_of_another_model_is_not_continued(tmp_path):
    write_texts(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    other = tiny_llama(vocab_size=len(TOKENIZER), seed=6, eos_token_id=END)
    with pytest.raises(CheckpointError, match="another model"):
        write_texts(other, TOKENIZER, 50, tmp_path, writing=WRITING)


def test_without_a_template_an_opening_begins_the_text():
    message, writing = Message([3, 4]), Writing(temperatures=(1.0,), max_length=12, num_candidates=2)
    texts = write_batch(ToyScorer(TableLM(6)), Turns([1], []), [0], [message] * 3, writing)
    assert all(text.tolist()[:3] == [1, 3, 4] for text, _ in split(texts))


def starts_with(ids, beginning):
    return ids[: len(beginning)] == beginning


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


def test_texts_are_no_longer_than_the_model_has_positions(tmp_path):
    config = GPT2Config(vocab_size=len(TOKENIZER), n_positions=16, n_embd=8, n_layer=1, n_head=1, eos_token_id=END)
    with pytest.raises(ConfigError, match="max_length is 18, the model has 16 positions"):
        write_texts(GPT2LMHeadModel(config).eval(), TOKENIZER, 10, tmp_path, writing=Writing(max_length=18))


def test_draws_follow_the_distribution_at_every_temperature():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    temperatures = torch.tensor([0.0, 0.5, 1.0]).repeat(20_000)
    drawn = draw(logits.expand(60_000, 4).contiguous(), temperatures, torch.Generator().manual_seed(0)).view(-1, 3)
    assert (drawn[:, 0] == 3).all()
    for column, temperature in ((1, 0.5), (2, 1.0)):
        probs = dict(enumerate((logits / temperature).softmax(0).tolist()))
        counts = dict(enumerate(drawn[:, column].bincount(minlength=4).tolist()))
        assert g_test(counts, probs, 20_000) > 1e-3


def test_options_out_of_range_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="num_tokens"):
        warm_up(TARGET, TOKENIZER, 0, tmp_path)
    for options in ({"max_length": 0}, {"batch_size": True}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            Writing(**options)
    for options in ({"temperatures": ()}, {"temperatures": (-1.0,)}, {"message_temperature": -0.1}):
        with pytest.raises(ConfigError, match="temperatures"):
            Writing(**options)
    endless = tiny_llama(vocab_size=8)
    nameless = copy.deepcopy(byte_level(400))
    nameless.eos_token = None
    with pytest.raises(ConfigError, match="never end"):
        end_tokens(endless, nameless)
    assert end_tokens(endless, TOKENIZER) == [END]
    endless.generation_config.eos_token_id = [3, 4]
    assert end_tokens(endless, TOKENIZER) == [3, 4]


def test_an_interrupted_run_is_resumed_and_gives_the_same(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start = warm_up(TARGET, TOKENIZER, 500, whole, writing=WRITING)
    shards = sorted(whole.iterdir())
    assert len(shards) >= 3
    parts.mkdir()
    (parts / shards[0].name).write_bytes(shards[0].read_bytes())
    counts = []
    again = warm_up(TARGET, TOKENIZER, 500, parts, writing=WRITING, on_tokens=counts.append)
    assert counts[0] == len(read_texts(shards[0]).tokens)
    assert [path.name for path in sorted(parts.iterdir())] == [path.name for path in shards]
    assert torch.equal(torch.cat(list(again.texts)), torch.cat(list(start.texts)))
    assert torch.equal(again.table.candidates, start.table.candidates)
    assert torch.equal(read_folder(parts).tokens, torch.cat(list(start.texts)))
    first, second = (read_texts(path).tokens.tolist() for path in shards[:2])
    assert first != second, "every batch has a seed of its own"
    with pytest.raises(CheckpointError, match="other settings"):
        warm_up(TARGET, TOKENIZER, 500, parts, writing=Writing(seed=1))


def test_the_table_holds_the_models_candidates(tmp_path):
    start = warm_up(TARGET, TOKENIZER, 300, tmp_path, prompts=["Why?", "Who grants what?"], writing=WRITING)
    assert start.about["num_prompts"] == 2
    assert start.vocab_size == len(TOKENIZER)
    assert TOKENIZER.decode(start.texts[1]).startswith("<s>user\nWho grants what?</s>\n<s>assistant\n")
    texts = read_folder(tmp_path)
    seen = texts.tokens[texts.top[:, 0] >= 0].unique()
    assert torch.equal((start.table.candidates[:, 0] >= 0).nonzero().squeeze(1), seen)


def test_damaged_texts_are_refused(tmp_path):
    warm_up(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    assert set(load_file(path)) == {"tokens", "lengths", "top"}
    path.write_bytes(whole[:-20])
    with pytest.raises(CheckpointError, match="cannot be read"):
        warm_up(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    path.unlink()
    with pytest.raises(CheckpointError, match="write some text first"):
        read_folder(tmp_path)
