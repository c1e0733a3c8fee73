"""Writing in slots and training several heads at once, on the CPU with a tiny model."""

import json
import time
from argparse import Namespace
from collections import Counter
from itertools import count
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.written import TARGET, TOKENIZER

from recipes.smollm2_head import on_gpu
from recipes.smollm2_head.corpus import MODEL_NAME, Text, read_corpus
from recipes.smollm2_head.messages import FIRST_KINDS, Messages
from recipes.smollm2_head.slots import Job, Slots
from treespec.heads.eagle3.module import Eagle3Head
from treespec.training.eagle3 import make_eagle3
from treespec.training.options import TrainingConfig
from treespec.training.text.batch import Message

LENGTH, MAX_MESSAGE = 60, 20


def written(temperature, num_rows=3, kinds=FIRST_KINDS):
    messages = Messages(TARGET, TOKENIZER, room=40)
    jobs = [Job(kind, message, temperature) for kind in kinds for message in messages.make(kind, 3, Random(kind))]
    jobs = [job for job in jobs if len(job.message.tokens) < LENGTH - 20] + [Job("own", Message(), temperature)] * 4
    slots = Slots(TARGET, messages.turns, messages.ends, num_rows, LENGTH, MAX_MESSAGE)
    return jobs, messages, list(slots.write(jobs))


def test_greedy_texts_are_those_of_generate():
    jobs, messages, texts = written(0.0)
    assert len(texts) == len(jobs)
    for text in texts:
        assert len(text.tokens) <= LENGTH
        if text.greedy + 1 >= len(text.tokens):
            continue
        ids = torch.from_numpy(text.tokens[: text.greedy + 1].astype(np.int64)).unsqueeze(0)
        limit = len(text.tokens) - ids.shape[1]
        expected = TARGET.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False, eos_token_id=messages.ends
        )
        assert expected[0].tolist() == text.tokens.tolist()


def test_messages_are_ended_by_the_template_and_kept_as_they_were_given():
    jobs, messages, texts = written(1.0)
    reply, opening = messages.turns.reply, messages.turns.opening
    begun = sorted(tuple(opening) + tuple(job.message.tokens) for job in jobs)
    for text in texts:
        tokens = tuple(text.tokens.tolist())
        assert any(tokens[: len(each)] == each for each in begun)
        assert text.greedy == len(tokens)
        assert text.first >= len(opening) - 1
        ends = [n for n in range(len(tokens)) if tokens[n : n + len(reply)] == tuple(reply)]
        assert ends or len(tokens) >= LENGTH - len(reply) - 1
        assert len(tokens) == LENGTH or tokens[-1] in messages.ends


def some_texts():
    rng = np.random.default_rng(0)
    lengths = [9, 14, 6, 30]
    firsts = [2, 0, 4, 12]
    return [
        Text("one", rng.integers(3, len(TOKENIZER), n).astype(np.uint16), first, n)
        for n, first in zip(lengths, firsts, strict=True)
    ]


def test_features_and_drafts_from_given_positions_are_those_of_the_library(monkeypatch):
    monkeypatch.setattr(on_gpu, "HIDDEN_LAYERS", (0, 1))
    texts = some_texts()
    batch = on_gpu.Features(TARGET, texts, batch_tokens=10_000, seed=0).read(texts)
    with torch.no_grad():
        expected = TARGET(torch.from_numpy(texts[3].tokens.astype(np.int64)).unsqueeze(0)).logits[0].softmax(-1)
    torch.testing.assert_close(batch.target_token_probs[3], expected.gather(1, batch.target_token_ids[3]))
    assert batch.is_generated[3].nonzero()[:, 0].tolist() == list(range(12, 29))
    config = TrainingConfig(num_depths=3, hidden_layers=(0, 1))
    head = make_eagle3(TARGET, torch.arange(len(TOKENIZER)), (0, 1), config).head
    assert isinstance(head, Eagle3Head)
    learner = on_gpu.PlacedLearner(head, 3)
    expected = learner.drafts(batch, None)
    learner.starts = on_gpu.draft_starts(texts, 3, torch.device("cpu"))
    found = learner.drafts(batch, None)
    for own, other in zip(found, expected, strict=True):
        assert torch.equal(own.texts, other.texts)
        assert torch.equal(own.anchors, other.anchors)
        torch.testing.assert_close(own.outputs, other.outputs)


def test_a_pass_over_the_texts_has_every_text_once_in_batches_that_fit():
    texts = some_texts() * 5
    features = on_gpu.Features(TARGET, texts, batch_tokens=40, seed=0)
    batches = list(features.order())
    assert sorted(len(text.tokens) for batch in batches for text in batch) == sorted(len(t.tokens) for t in texts)
    assert all(len(batch) * max(len(text.tokens) for text in batch) <= 40 for batch in batches)


def test_writing_goes_on_with_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(on_gpu, "PART", 4)
    monkeypatch.setattr(on_gpu, "LENGTHS", {False: 120, True: 160})
    monkeypatch.setattr(on_gpu, "SHARES", dict.fromkeys(on_gpu.SHARES, 1 / 7))
    args = Namespace(out=tmp_path, texts=21 * on_gpu.TEXT_TOKENS, write_minutes=60, rows=3, seed=3)
    write, left = Slots.write, iter(range(10))

    def stopped(self, jobs):
        for text in write(self, jobs):
            if next(left, None) is None:
                raise KeyboardInterrupt
            yield text

    monkeypatch.setattr(Slots, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        on_gpu.written_texts(TARGET, TOKENIZER, args)
    monkeypatch.setattr(Slots, "write", write)
    there = read_corpus(tmp_path / "texts-3.part")
    assert len(there) == 8, "two parts of four"
    texts = on_gpu.written_texts(TARGET, TOKENIZER, args)
    assert [text.tokens.tolist() for text in texts[:8]] == [text.tokens.tolist() for text in there]
    assert Counter(text.kind for text in texts) == dict.fromkeys(on_gpu.SHARES, 3)
    monkeypatch.setattr(on_gpu, "write_texts", None)
    assert len(on_gpu.written_texts(TARGET, TOKENIZER, args)) == len(texts), "all of them are there"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """The folder of a head for `TARGET`; the clock goes on by a second whenever it is read."""
    monkeypatch.setattr(on_gpu, "HIDDEN_LAYERS", (0, 1))
    seconds = count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(seconds)), strftime=time.strftime)
    monkeypatch.setattr(on_gpu, "time", clock)
    learner = make_eagle3(TARGET, torch.arange(len(TOKENIZER)), (0, 1), TrainingConfig(num_depths=2))
    with torch.no_grad():
        learner.head.fc.weight.fill_(0.125)
    learner.save(tmp_path / "start", MODEL_NAME, torch.float32)
    return tmp_path / "start"


def training(start, **others):
    fields = {"depths": 2, "learning_rate": 1e-3, "batch_tokens": 60, "seed": 0, "minutes": 1, "evaluations": 3}
    return Namespace(start=start, **fields | others)


def many_texts():
    rng = np.random.default_rng(1)
    texts = [Text("talk", rng.integers(3, len(TOKENIZER), 12).astype(np.uint16), 3, 3) for _ in range(80)]
    assert any(text.is_held_out for text in texts)
    return texts


def test_training_begins_with_the_given_head_and_goes_on_from_its_last_evaluation(start, tmp_path, monkeypatch):
    step, steps, left = on_gpu.Trainee.step, [], iter(range(30))

    def counted(self, *args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        steps.append([weight.detach().clone() for weight in self.objective.parameters()])
        return step(self, *args)

    def lines():
        return [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]

    monkeypatch.setattr(on_gpu.Trainee, "step", counted)
    with pytest.raises(KeyboardInterrupt):
        on_gpu.train(TARGET, many_texts(), tmp_path, training(start))
    assert any(weight.eq(0.125).all() for weight in steps[0])
    before = lines()
    assert 1 < len(before) < 4
    known, steps[:], left = steps[before[-1]["step"]], [], count()
    on_gpu.train(TARGET, many_texts(), tmp_path, training(start))
    assert all(map(torch.equal, steps[0], known)), "the weights of the last evaluation"
    after = lines()
    assert len(after) == 4
    assert after[: len(before)] == before
    assert after[-1]["step"] == before[-1]["step"] + len(steps)
    on_gpu.train(TARGET, many_texts(), tmp_path, training(start))
    assert lines() == after, "a run that is over"
