"""Folders of text that a model writes: openings, settings, interrupted runs, warm starts."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers.text_tokenizers import byte_level
from helpers.tiny import tiny_llama
from helpers.written import END, TARGET, TOKENIZER, WRITING, spell, split
from transformers import GPT2Config, GPT2LMHeadModel

from treespec.errors import CheckpointError, ConfigError
from treespec.training.text.batch import Writing
from treespec.training.text.chat import chat_turns, end_tokens
from treespec.training.text.texts import read_folder, read_texts
from treespec.training.text.writing import warm_up, write_texts


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


def starts_with(ids, beginning):
    return ids[: len(beginning)] == beginning


def test_models_whose_weights_cannot_be_packed_write_too(tmp_path):
    model = copy.deepcopy(TARGET).bfloat16()
    assert len(write_texts(model, TOKENIZER, 20, tmp_path, writing=WRITING).tokens) >= 20


def test_text_of_another_model_is_not_continued(tmp_path):
    write_texts(TARGET, TOKENIZER, 50, tmp_path, writing=WRITING)
    other = tiny_llama(vocab_size=len(TOKENIZER), seed=6, eos_token_id=END)
    with pytest.raises(CheckpointError, match="another model"):
        write_texts(other, TOKENIZER, 50, tmp_path, writing=WRITING)


def test_options_out_of_range_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="num_tokens"):
        warm_up(TARGET, TOKENIZER, 0, tmp_path)
    with pytest.raises(CheckpointError, match="write some text first"):
        read_folder(tmp_path)
    config = GPT2Config(vocab_size=len(TOKENIZER), n_positions=16, n_embd=8, n_layer=1, n_head=1, eos_token_id=END)
    with pytest.raises(ConfigError, match="max_length is 18, the model has 16 positions"):
        write_texts(GPT2LMHeadModel(config).eval(), TOKENIZER, 10, tmp_path, writing=Writing(max_length=18))
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
