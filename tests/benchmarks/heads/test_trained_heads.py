"""The benchmark of trained drafters at test size: what it counts, what it keeps, what it says."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from helpers.eagle3_files import random_tensors, shape, write
from helpers.head_files import SPECULATORS
from helpers.tiny import noisy_copy, prompt, tiny_llama

from benchmarks.common.prompts import Prompt
from benchmarks.heads import trained_heads
from benchmarks.heads.trained_heads import Bench, FirstStep, held_out
from benchmarks.heads.trained_report import PLAIN, Measurement, table
from treespec import Chain, SuffixLookup, TreeSpeculation
from treespec.hf.loading import smollm2

NEW_TOKENS = 8
PROMPTS = [Prompt(f"p{seed}", str(seed)) for seed in (1, 2)]
SHAPES = {"chain of 4": Chain(4), "tree of 8": 8}
NAMES = [PLAIN, *(f"head, {shape}" for shape in SHAPES), "head + recycling + suffix, tree of 8"]
NAMES += [*(f"draft, {shape}" for shape in SHAPES), "draft, transformers' assisted generation"]


def encode(_, prompts):
    ids = prompt(seed=int(prompts[0].text))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture
def model():
    return tiny_llama(num_layers=3)


@pytest.fixture
def draft(model):
    return noisy_copy(model, noise=0.1)


@pytest.fixture
def run(model, draft, tmp_path, monkeypatch):
    """The command, which returns what its result files say."""
    made = shape(hidden=32, flags={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    head, drafter, out = tmp_path / "runs" / "head", tmp_path / "draft" / "drafter", tmp_path / "out" / "trained.json"
    write(head, made, random_tensors(made), SPECULATORS)
    draft.save_pretrained(drafter)
    monkeypatch.setattr(smollm2, "load", lambda say: (model, SimpleNamespace(eos_token_id=-1)))
    monkeypatch.setattr(smollm2, "converted_folder", lambda: tmp_path / "cache" / "model")
    monkeypatch.setattr(trained_heads, "SHAPES", SHAPES)
    monkeypatch.setattr(trained_heads, "encode", encode)
    monkeypatch.setattr(trained_heads, "held_out", lambda _, count: PROMPTS[:count])
    monkeypatch.setattr(trained_heads, "warm", lambda: [SuffixLookup()])

    def call(*arguments):
        given = ["--drafter", f"head={head}", "--draft-model", str(drafter), "--merged", "--prompts", "2"]
        given += ["--new-tokens", str(NEW_TOKENS), "--output", str(out), *arguments]
        monkeypatch.setattr("sys.argv", ["trained_heads", *given])
        trained_heads.main()
        return json.loads(out.read_text()), out.with_suffix(".md").read_text(), out.with_suffix(".png")

    return call


@pytest.mark.slow
def test_the_whole_run(run, model, draft, monkeypatch):
    data, text, picture = run()
    assert list(data["runs"]) == ["T=0", "T=1"]
    for by_name in data["runs"].values():
        assert list(by_name) == NAMES
    found = {name: [Measurement(*run) for run in runs] for name, runs in data["runs"]["T=0"].items()}
    for runs in found.values():
        assert [run.num_tokens for run in runs] == [NEW_TOKENS] * 2
        assert all(run.is_right and run.ms_per_token > 0 for run in runs)
    assert all(run.num_passes == NEW_TOKENS for run in found[PLAIN])
    for given, counted in zip(PROMPTS, found["draft, chain of 4"], strict=True):
        speculation = TreeSpeculation(draft, tree=Chain(4))
        model.generate(**encode(None, [given]), max_new_tokens=NEW_TOKENS, do_sample=False, custom_generate=speculation)
        assert counted.num_passes == speculation.stats.num_drafts < NEW_TOKENS
    assert text.count("| plain generate | 1.00 (1.00 to 1.00) |") == 2
    assert "2 of 2" in text
    assert "WRONG" not in text
    assert picture.stat().st_size > 10_000
    monkeypatch.setattr(Bench, "decode", lambda *_: pytest.fail("measured again"))
    again, _, _ = run()
    assert again["runs"] == data["runs"]
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        run("--seed", "1")


@pytest.mark.slow
def test_temperatures_come_together(run, monkeypatch):
    one, text, picture = run("--temperatures", "1", "--prompts", "1")
    assert list(one["runs"]) == ["T=1"]
    assert "## T=0" not in text
    assert picture.stat().st_size > 10_000
    zero, _, _ = run("--temperatures", "0", "--prompts", "1")
    monkeypatch.setattr(Bench, "decode", lambda *_: pytest.fail("measured again"))
    both, _, _ = run("--prompts", "1")
    assert both["runs"] == zero["runs"] | one["runs"]


def test_without_time_nothing_is_written(run, tmp_path):
    with pytest.raises(SystemExit, match="No prompt"):
        run("--minutes", "0")
    assert not (tmp_path / "out").exists()


def test_the_first_step_ends_with_its_last_token(monkeypatch):
    """Steps of three and two tokens, asked about one by one."""
    clock, passes = iter(range(100)), iter([2, 2, 2, 2, 3, 3])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    first = FirstStep(10, lambda: next(passes))
    for length in (11, 12, 13, 14, 15):
        assert not first(torch.zeros(1, length), None).any()
    assert (first.seconds, first.num_tokens) == (0, 3)


def test_a_text_that_ends_in_its_first_step_is_not_timed(model, monkeypatch):
    monkeypatch.setattr(trained_heads, "encode", encode)
    found = Bench(model, SimpleNamespace(eos_token_id=-1), 1).decode(PROMPTS[0], 0.0, {}, seed=0)
    assert found == Measurement(1, 1, None, True, True)
    assert "| plain generate | 1.00 (1.00 to 1.00) |  |  | 1 of 1 |" in table({PLAIN: [found]})


def test_wrong_outputs_and_ties_are_named():
    same, tie, wrong = (Measurement(4, 4, 1.0, *flags) for flags in ((True, True), (False, True), (False, False)))
    assert "| 1 of 3, 1 differ after a tie, 1 WRONG |" in table({PLAIN: [same, tie, wrong]})
    assert "identical" not in table({PLAIN: [Measurement(4, 4, 1.0)]})


def test_prompts_are_of_all_sources_by_turns(tmp_path, monkeypatch):
    for name, letter in (("human_eval", "h"), ("gsm8k", "g")):
        prompts = [Prompt(f"{letter}{i}", "") for i in range(20)]
        monkeypatch.setattr(trained_heads, name, lambda prompts=prompts: prompts)
    lines = [{"question_id": i, "category": f"c{i % 2}", "turns": ["x"]} for i in range(10)]
    path = tmp_path / "question.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert [p.name[0] for p in held_out(path, 8)] == list("ShSgShSg")
    assert [p.name for p in held_out(None, 5)] == ["h0", "g0", "h6", "g10", "h13"]
