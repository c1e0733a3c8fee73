"""Trees against chains at test size: the replay against the engine with real passes, the statistics, the reports."""

import argparse
import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama

from benchmarks.common import drafters, recorded
from benchmarks.common.estimates import ratio
from benchmarks.common.prompts import Prompt
from benchmarks.common.recorded import Text
from benchmarks.tree_vs_chain import cells as tree_cells
from benchmarks.tree_vs_chain import report as tree_report
from benchmarks.tree_vs_chain.__main__ import Benchmark
from benchmarks.tree_vs_chain.policies import BUDGETS, CHAIN, POLICIES, measuring_policy
from benchmarks.tree_vs_chain.replay import RecordedScorer, replay
from treespec import DraftModel, Merge, SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.hf import TreeScorer
from treespec.lab.measure.paired import bootstrap, difference

TABLE = [[0.5, 0.2, 0.1], [0.4, 0.2], [0.3], [0.3], [0.3]]


@pytest.fixture(scope="module")
def pair():
    model = tiny_llama()
    return model, noisy_copy(model, noise=0.15)


@pytest.fixture(scope="module")
def text(pair):
    """A greedy text of the model, longer than what is replayed of it."""
    ids = prompt()
    return Text(pair[0].generate(ids, max_new_tokens=60, do_sample=False)[0], ids.shape[1])


@torch.no_grad()
def test_recorded_logits_are_those_of_plain_passes(pair, text):
    model = pair[0]
    scorer = RecordedScorer(model, text)
    start = text.start
    scorer.prefill(text.ids[None, : start - 1], torch.ones(1, start - 1, dtype=torch.bool))
    true = text.ids.tolist()
    # Root, the text's next token, another token below either, and padding; then a level below those.
    first = [true[start - 1], true[start], 5, 6, 0]
    logits = scorer.extend(torch.tensor([first]), torch.tensor([[-1, 0, 0, 1, -2]])).logits[0]
    deeper = scorer.extend(torch.tensor([[7, 8]]), torch.tensor([[2, 3]])).logits[0]
    paths = [[0], [0, 1], [0, 2], [0, 1, 3]]
    prefix = true[: start - 1]
    for path, found in zip(paths, logits, strict=False):
        ids = torch.tensor([prefix + [first[node] for node in path]])
        assert torch.allclose(found, model(ids).logits[0, -1], atol=1e-4)
    for tail, found in zip(([true[start - 1], 5, 7], [true[start - 1], true[start], 6, 8]), deeper, strict=True):
        assert torch.allclose(found, model(torch.tensor([prefix + tail])).logits[0, -1], atol=1e-4)
    scorer.commit([[0, 1]])
    count = scorer.num_scored
    again = scorer.extend(torch.tensor([[6, 9]]), torch.tensor([[-1, 0]])).logits[0]
    assert torch.equal(again[0], logits[3])
    assert scorer.num_scored == count + 1
    ids = torch.tensor([[*prefix, true[start - 1], true[start], 6, 9]])
    assert torch.allclose(again[1], model(ids).logits[0, -1], atol=1e-4)


@pytest.mark.parametrize(
    ("drafter", "shape"),
    [("merged", "best first"), ("draft model", "best first"), ("draft model", CHAIN)],
)
def test_replay_accepts_what_the_engine_accepts(pair, text, drafter, shape):
    """Trees of a fixed shape need no passes of the draft but those over the text."""
    model, draft = pair

    def make(scorer):
        model_drafter = DraftModel(scorer)
        return model_drafter if drafter == "draft model" else Merge([model_drafter, TokenRecycling(), SuffixLookup()])

    policy = POLICIES[shape].policy(6, TABLE)
    speculation = TreeSpeculation(make(TreeScorer(draft)), tree=policy, record_steps=True)
    ids = text.ids[None, : text.start]
    # The engine goes on beyond what is replayed: the end of generation would cut the last trees.
    out = model.generate(ids, max_new_tokens=24 + 32, do_sample=False, custom_generate=speculation)
    assert torch.equal(out[0], text.ids[: text.start + 24 + 32])
    target, recorded = RecordedScorer(model, text, num_kept=16), RecordedScorer(draft, text)
    recorded.is_text_enough = POLICIES[shape].is_fixed and drafter == "draft model"
    stats = replay(target, make(recorded), policy, text, num_new=24)
    emitted = [len(step.emitted[0]) for step in speculation.steps]
    num_steps = next(n for n in range(len(emitted) + 1) if sum(emitted[:n]) >= 24)
    assert stats.num_drafts == num_steps - 1, "the prompt's pass has none"
    assert stats.num_accepted_tokens == sum(emitted[:num_steps]) - num_steps
    assert stats.num_accepted_tokens > 3
    assert (recorded.num_scored == 0) == recorded.is_text_enough


def test_no_policy_drafts_more_than_its_budget():
    for shape, n in product(POLICIES.values(), BUDGETS):
        assert shape.policy(n, TABLE).max_nodes <= n + 1
    assert measuring_policy().max_nodes == 65


def test_intervals():
    values = np.random.default_rng(0).normal(2.0, 1.0, 400).tolist()
    mean = bootstrap(values)
    error = np.std(values) / 20
    assert mean.value == pytest.approx(np.mean(values))
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert difference([3.0, 5.0], [2.0, 4.0]) == (1.0, 1.0, 1.0)
    assert ratio([2.0, 4.0, 30.0], [1.0, 2.0, 3.0]).value == 2.0
    assert difference([1.5], [1.0]).text(sign="+") == "+0.50 (+0.50 to +0.50)"


@pytest.fixture
def tiny_models(pair, monkeypatch):
    """`Models` on tiny ones, a stand-in for the tokenizer, prompts that are numbers."""
    model, draft = pair

    def encode(_, prompts):
        ids = torch.cat([prompt(seed=int(p.text)) for p in prompts])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    monkeypatch.setattr(recorded, "encode", encode)
    monkeypatch.setattr(tree_cells, "BUDGETS", BUDGETS[:4])
    few = {name: POLICIES[name] for name in (CHAIN, "k-ary", "sequoia", "best first")}
    monkeypatch.setattr(tree_cells, "POLICIES", few)
    monkeypatch.setattr(tree_report, "BUDGETS", BUDGETS[:4])
    models = object.__new__(tree_cells.Models)
    models.target, models.drafts = model, {drafters.DRAFT: draft}
    models.tokenizer = SimpleNamespace(eos_token_id=-1)  # pyright: ignore[reportAttributeAccessIssue]
    return models


@pytest.mark.slow
def test_whole_run_on_tiny_models(tiny_models, tmp_path):
    prompts, measuring = ([Prompt(f"p{i}", str(i)) for i in group] for group in ((4, 5), (6,)))
    names = ["suffix, request only", "recycling, cold", "recycling + suffix, cold", "draft model"]
    args = argparse.Namespace(drafters=names, new_tokens=8, seed=0, minutes=5.0, threads=1)
    progress = SimpleNamespace(add_task=lambda *_, **__: 0, update=lambda *_, **__: None, advance=lambda *_: None)
    found, again = (
        Benchmark(args, tiny_models, prompts, measuring, tmp_path).run(progress)  # pyright: ignore
        for _ in range(2)
    )
    assert set(found["selected"]["T=0"]) == set(names)
    lengths = tree_report.lengths_of(found["selected"]["T=0"]["draft model"])
    assert all(value >= 1 for cells in lengths.values() for values in cells.values() for value in values)
    assert lengths["best first"][1] == lengths[CHAIN][1]
    assert again == found
    run = {"command": "c", "processor": "p", "threads": 1, "versions": {}, "seed": 0, "new_tokens": 8, "seconds": 1}
    run |= {"load_average": 0.0, "load_average_after": 0.0}
    report = tree_report.write(json.loads(json.dumps(found | {"run": run})), tmp_path)
    assert report.count("| gain |") == 8
