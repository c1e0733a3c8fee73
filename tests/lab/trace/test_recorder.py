"""The contents of a recorded step, and that recording changes nothing."""

from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from helpers import written
from helpers.traced import DRAFT, DRAFTERS, TARGET, record

import treespec
from treespec.engine import stats
from treespec.engine.stats import PHASES
from treespec.lab.trace.recorder import Texts


@pytest.mark.parametrize(("drafter", "is_sampling"), [("draft model", True), ("merge", False), ("merge", True)])
def test_the_output_is_the_same_and_the_steps_are_the_engines(tmp_path, drafter, is_sampling):
    out, speculation, trace = record(tmp_path / "run.jsonl", drafter, num_rows=2, is_sampling=is_sampling)
    untraced = treespec.TreeSpeculation(DRAFTERS[drafter](), tree=8, seed=7)
    options = {"max_new_tokens": 16, "do_sample": is_sampling, "pad_token_id": 0, "eos_token_id": None}
    ids = out[:, :12]
    plain = TARGET.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=untraced, **options)
    assert out.equal(plain)
    (call,) = trace.calls
    assert call.end == "complete"
    assert call.about["prompt_ids"] == ids.tolist()
    records: list[Any] = [
        (n, row, *rest)
        for n, s in enumerate(speculation.steps)
        for row, *rest in zip(s.rows, s.trees, s.verdicts, s.emitted, strict=True)
    ]
    assert len(records) == len(call.steps)
    text = [list(row) for row in ids.tolist()]
    for (number, row, tree, verdict, emitted), step in zip(records, call.steps, strict=True):
        assert (step.step, step.row, step.emitted) == (number, row, emitted)
        assert (step.tokens, step.parents) == (tree.token_list, tree.parent_list)
        assert (tuple(step.path), step.next_token, step.is_bonus) == verdict
        assert step.context == len(text[row])
        assert step.tokens[0] == text[row][-1]
        assert (step.coins is not None) == is_sampling
        assert {node for nodes in step.drafters.values() for node in nodes} == set(range(1, step.num_nodes))
        assert set(step.seconds) == {*PHASES, "processors", "other"}
        text[row] += emitted
    assert text == out.tolist()


def test_probabilities_are_the_models(tmp_path):
    temperature = 0.6
    options = {"temperature": temperature, "top_k": 0, "max_new_tokens": 6}
    out, _, trace = record(tmp_path / "run.jsonl", is_sampling=True, **options)
    for step in trace.steps:
        for node in range(step.num_nodes):
            path = [node]
            while path[-1]:
                path.append(step.parents[path[-1]])
            below = [step.tokens[i] for i in reversed(path[:-1])]
            text = torch.cat([out[0, : step.context], torch.tensor(below, dtype=torch.long)]).unsqueeze(0)
            target, draft = (
                (m(text).logits[0, -1].double() / temperature).softmax(-1).tolist() for m in (TARGET, DRAFT)
            )
            children = step.children(node)
            left = 1.0
            for child in children:
                token = step.tokens[child]
                assert step.target_probs[child] == pytest.approx(target[token], rel=1e-3, abs=1e-6)
                assert step.draft_probs[child] == pytest.approx(draft[token] / left, rel=1e-3, abs=1e-6)
                if (step.is_without_replacement or [])[child]:
                    left -= draft[token]
            if node == step.path[-1]:
                assert step.next_prob == pytest.approx(target[step.next_token], rel=1e-3)
                assert step.top_prob == pytest.approx(max(target), rel=1e-3)
                assert (step.residual_mass is None) == (not children)


def test_the_residual_mass_of_selected_children_is_what_they_leave(tmp_path):
    _, _, trace = record(tmp_path / "run.jsonl", "lookup")
    ends = [step for step in trace.steps if step.residual_mass is not None]
    assert ends
    for step in ends:
        covered = sum(step.target_probs[child] for child in step.children(step.path[-1]))
        assert step.residual_mass == pytest.approx(1 - covered, abs=1e-5)


def test_a_control_records_its_choice_and_waits_are_counted(tmp_path):
    _, speculation, trace = record(tmp_path / "run.jsonl", "merge", tree="auto")
    for step, kept in zip(trace.steps, speculation.steps, strict=True):
        assert (step.choice is None) == (kept.choice is None) == (step.step == 0), "the prompt has no draft"
        assert step.choice is None or step.choice["name"] == kept.choice.name
        assert step.choice is None or step.choice["reason"] == kept.choice.reason
        assert step.waits == 0, "a CPU never waits"


def test_the_time_of_processors_is_taken(tmp_path, monkeypatch):
    """By a clock that shows a second more whenever it is read."""
    monkeypatch.setattr(stats, "perf_counter", partial(next, count()))
    _, _, trace = record(tmp_path / "a.jsonl", is_sampling=True, repetition_penalty=1.2)
    assert all(step.seconds["processors"] >= 1 for step in trace.steps)
    _, _, without = record(tmp_path / "b.jsonl")
    assert not any(step.seconds["processors"] for step in without.steps)


def test_an_error_of_a_call_ends_its_record(tmp_path):
    class Failing(treespec.SuffixLookup):
        def update(self, step):
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        record(tmp_path / "run.jsonl", Failing())
    assert treespec.read_trace(tmp_path / "run.jsonl").calls[0].end == "ValueError: planted"


def test_pieces_make_up_the_text():
    text = "Ein Käse 🧀 für dich"
    texts = Texts(written.TOKENIZER)
    ids = written.spell(text)
    pieces = texts.pieces(0, ids[:5]) + texts.pieces(0, ids[5:])
    assert "".join(pieces) == written.TOKENIZER.decode(ids)
    assert len(pieces) == len(ids)


def test_a_trace_has_the_texts_of_its_tokens_once(tmp_path):
    out, _, trace = record(tmp_path / "run.jsonl", "lookup", model=written.TARGET, tokenizer=written.TOKENIZER)
    (call,) = trace.calls
    assert "".join(piece for step in call.steps for piece in step.pieces).strip("\ufffd") in written.TOKENIZER.decode(
        out[0, 12:]
    )
    assert {token for step in call.steps for token in [*step.tokens, step.next_token]} == set(call.texts)
    assert call.about["prompt"] == [written.TOKENIZER.decode(out[0, :12])]
