"""Texts small enough for a repository, and rounds of writing and training that go on from them."""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.written import TARGET, TOKENIZER

from recipes.smollm2_head import corpus, further, mtp, rounds
from recipes.smollm2_head.corpus import Text, append, is_looping, join_texts, loop_end, read_corpus, split_texts
from recipes.smollm2_head.write import Writer
from treespec.training.evaluate import MIN_GREEDY
from treespec.training.text.texts import Texts

KINDS = {"tasks", "talk", "openings", "languages", "turns", "sources"}


def random_texts(count, seed=0, kinds=("one", "two")):
    rng = np.random.default_rng(seed)
    texts = []
    for number in range(count):
        length = int(rng.integers(60, 200))
        first = int(rng.integers(1, 20))
        greedy = length if rng.random() < 0.5 else int(rng.integers(first, length - MIN_GREEDY))
        tokens = rng.integers(0, 49152, length).astype(np.uint16)
        texts.append(Text(kinds[number % len(kinds)], tokens, first, greedy))
    return texts


def same(ones, others):
    return len(ones) == len(others) and all(
        np.array_equal(one.tokens, other.tokens) and one._replace(tokens=0) == other._replace(tokens=0)
        for one, other in zip(ones, others, strict=True)
    )


def test_texts_come_back_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "FILE_TOKENS", 2000)
    texts = random_texts(64)
    for start in range(0, 64, 8):
        append(tmp_path, texts[start : start + 8])
    paths = sorted(tmp_path.iterdir())
    assert len(paths) > 2
    assert {path.suffix for path in paths} == {".npz"}
    assert same(read_corpus(tmp_path), texts)


def test_training_reads_where_the_target_chose_and_where_greedily():
    texts = random_texts(40)
    joined = join_texts(texts)
    is_greedy = (joined.top[:, 0] == joined.tokens.roll(-1)).split(joined.lengths.tolist())
    is_own = (joined.top[:, 0] >= 0).split(joined.lengths.tolist())
    for text, greedy, own in zip(texts, is_greedy, is_own, strict=True):
        assert own.nonzero().flatten().tolist() == list(range(text.first, len(text.tokens) - 1))
        assert greedy.nonzero().flatten().tolist() == list(range(max(text.greedy, text.first), len(text.tokens) - 1))
    again = [text for text, each in zip(texts, split_texts(joined, "one"), strict=True) if same([text], [each])]
    assert [text for text in texts if text.kind == "one"] == again


@pytest.mark.parametrize("period", [1, 7, corpus.LONGEST_PERIOD])
def test_loops_are_cut(period):
    rng = np.random.default_rng(period)
    start, loop = (rng.integers(0, 1000, n).astype(np.uint16) for n in (50, period))
    looping = np.concatenate([start, np.tile(loop, 500 // period)])
    assert len(start) + period <= loop_end(looping) <= len(start) + period + corpus.REPEATED
    assert loop_end(looping[: 50 + period + corpus.REPEATED - 1]) == 50 + period + corpus.REPEATED - 1
    assert loop_end(start) == len(start)
    looping_from = next(n for n in range(len(looping) + 1) if is_looping(looping[:n].tolist()))
    assert looping_from == loop_end(looping), "writing ends where the text is cut"
    top = torch.from_numpy(looping.astype(np.int64)).roll(-1).unsqueeze(1)
    (text,) = split_texts(Texts(top.roll(1)[:, 0], torch.tensor([len(looping)]), top), "one")
    assert len(text.tokens) == loop_end(looping)


def test_held_out_texts_stay_held_out():
    texts = random_texts(5000)
    held_out, chosen = rounds.choose(texts[:2000], 50_000, seed=1)
    later, more = rounds.choose(texts, 50_000, seed=2)
    assert 0 < len(held_out) <= rounds.NUM_HELD_OUT
    trained = {text.order for text in (*chosen, *more)}
    assert not trained & {text.order for text in (*held_out, *later)}
    # Training holds out the texts with the smallest hashes of all.
    joined = sorted([*held_out, *chosen], key=lambda text: text.order)
    assert {text.order for text in joined[: len(held_out)]} == {text.order for text in held_out}
    assert Counter(text.kind for text in later) == dict.fromkeys(("one", "two"), rounds.NUM_HELD_OUT // 2)
    counts = Counter()
    for text in chosen:
        counts[text.kind] += len(text.tokens)
    assert sum(counts.values()) == pytest.approx(50_000, rel=0.03)
    assert counts["one"] == pytest.approx(counts["two"], rel=0.03)


def test_rare_kinds_leave_their_share_to_the_others():
    texts = [*random_texts(400, kinds=("many",)), *random_texts(10, seed=1, kinds=("few",))]
    _, chosen = rounds.choose(texts, 20_000, seed=0)
    assert sum(len(text.tokens) for text in chosen) == pytest.approx(20_000, rel=0.03)
    assert sum(text.kind == "few" for text in chosen) >= 9


def test_messages_that_end_like_a_sentence_are_not_continued():
    assert not further.is_open("Why?")
    assert further.is_open("And what about")
    opened = sum(further.is_open(message) for message in further.FOLLOW_UPS)
    assert 5 <= opened <= len(further.FOLLOW_UPS) // 2
    assert all(further.is_open(message) for message in further.LANGUAGES)


def test_all_kinds_are_written_by_turns_and_resumed(tmp_path):
    first, whole = tmp_path / "first", tmp_path / "whole"
    for _ in range(3):
        Writer(TARGET, TOKENIZER, first, batch_size=3, length=60).write()
    writer = Writer(TARGET, TOKENIZER, first, batch_size=3, length=60)
    for _ in range(3):
        writer.write()
    at_once = Writer(TARGET, TOKENIZER, whole, batch_size=3, length=60)
    for _ in range(6):
        at_once.write()
    texts = read_corpus(whole)
    assert {text.kind for text in texts} == KINDS
    assert same(read_corpus(first), texts)
    assert max(len(text.tokens) for text in texts) <= 90


class Finished:
    """What `train` gives back."""

    def __init__(self, folder, before, after):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(after))
        self.progress = argparse.Namespace(num_tokens=7, log=[before, {"loss": 1.0}, after])


def test_a_round_replaces_the_head_only_where_it_is_better(tmp_path, monkeypatch):
    append(tmp_path / "texts", random_texts(200))
    args = argparse.Namespace(
        out=tmp_path / "runs", folder=tmp_path, batches=0, tokens=9000, learning_rate=1e-3, tv_start=0.5
    )
    worse, better, mixed = (
        {"overlap": 0, "tree_16": tree, "sampled_chain_4": chain} for tree, chain in ((2, 2), (3, 3), (4, 1))
    )
    starts = []

    def train(model, texts, folder, config, **_):
        starts.append(Path(config.start))
        if len(starts) == 1:
            raise KeyboardInterrupt
        return Finished(folder / "drafter", *(worse, better) if len(starts) == 2 else (better, mixed))

    monkeypatch.setattr(rounds, "train", train)
    with pytest.raises(KeyboardInterrupt):
        rounds.run_round(TARGET, TOKENIZER, args)
    append(tmp_path / "texts", random_texts(8, seed=3))
    rounds.run_round(TARGET, TOKENIZER, args)
    rounds.run_round(TARGET, TOKENIZER, args)
    lines = [json.loads(line) for line in (tmp_path / rounds.ROUNDS).read_text().splitlines()]
    assert [line["texts"] for line in lines] == [200, 208], "an interrupted round keeps to its texts"
    assert [line["is_better"] for line in lines] == [True, False]
    assert json.loads((tmp_path / "head" / "config.json").read_text()) == better
    assert starts[1] != starts[2] == tmp_path / "head"


def test_an_mtp_layer_is_trained_on_all_tasks_and_some_talk():
    texts = random_texts(60, kinds=("tasks", "talk", "languages"))
    num_tasks = sum(len(text.tokens) for text in texts if text.kind == "tasks")
    chosen = mtp.choose(texts, num_tasks + 500)
    assert Counter(text.kind for text in chosen)["tasks"] == 20
    assert {text.kind for text in chosen} == {"tasks", "talk"}
    talk = [len(text.tokens) for text in chosen if text.kind == "talk"]
    assert 500 <= sum(talk) < 500 + max(talk)
    assert mtp.choose(texts, num_tasks + 500) == chosen
