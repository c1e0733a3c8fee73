"""Texts small enough for a repository, and which of them an MTP layer is trained on."""

from collections import Counter

import numpy as np
import pytest

from recipes.smollm2_head import corpus, mtp
from recipes.smollm2_head.corpus import Text, append, join_texts, loop_end, read_corpus
from treespec.training.evaluate import MIN_GREEDY

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


@pytest.mark.parametrize("period", [1, 7, corpus.LONGEST_PERIOD])
def test_loops_are_cut(period):
    rng = np.random.default_rng(period)
    start, loop = (rng.integers(0, 1000, n).astype(np.uint16) for n in (50, period))
    looping = np.concatenate([start, np.tile(loop, 500 // period)])
    assert len(start) + period <= loop_end(looping) <= len(start) + period + corpus.REPEATED
    assert loop_end(looping[: 50 + period + corpus.REPEATED - 1]) == 50 + period + corpus.REPEATED - 1
    assert loop_end(start) == len(start)


def test_an_mtp_layer_is_trained_on_all_tasks_and_some_talk():
    texts = random_texts(60, kinds=("tasks", "talk", "languages"))
    num_tasks = sum(len(text.tokens) for text in texts if text.kind == "tasks")
    chosen = mtp.choose(texts, num_tasks + 500)
    assert Counter(text.kind for text in chosen)["tasks"] == 20
    assert {text.kind for text in chosen} == {"tasks", "talk"}
    talk = [len(text.tokens) for text in chosen if text.kind == "talk"]
    assert 500 <= sum(talk) < 500 + max(talk)
    assert mtp.choose(texts, num_tasks + 500) == chosen
