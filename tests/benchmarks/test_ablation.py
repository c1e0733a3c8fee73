"""The ablation benchmark at test size: its distributions against plain passes, its statistics, its files."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest
import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama

from benchmarks.ablation import run as ablate
from benchmarks.ablation.run import (
    PANELS,
    Row,
    WarpedDistributions,
    accepted_lengths,
    compared,
    read_baseline,
    whole_cells,
    write_results,
)
from benchmarks.common.acceptance import TREES, grow
from benchmarks.common.recorded import Text, without_layers
from treespec.errors import ConfigError
from treespec.hf import TreeScorer
from treespec.lab.measure.study.summary import panels_of, varied
from treespec.lab.measure.study.table import read_table
from treespec.testing import enumerate_traces
from treespec.verification import RULES


@pytest.fixture(scope="module")
def pair():
    model = tiny_llama()
    return model, noisy_copy(model, noise=0.3)


@torch.no_grad()
def test_distributions_are_those_of_plain_passes(pair):
    ids = prompt()[0]
    distributions = WarpedDistributions(TreeScorer(pair[0]), TreeScorer(pair[1]), [ids], temperature=0.7, top_p=0.8)
    for model, found in zip(pair, (distributions.target([(0, 5, 6)]), distributions.draft([(0, 5, 6)])), strict=True):
        distribution = (model(torch.cat([ids, torch.tensor([5, 6])])[None]).logits[0, -1] / 0.7).softmax(-1)
        best = distribution.sort(descending=True)
        kept = best.values.cumsum(0) - best.values < 0.8
        expected = torch.zeros_like(distribution).scatter(0, best.indices[kept], best.values[kept])
        assert torch.allclose(found[0], expected / expected.sum(), atol=1e-5)


def test_lengths_are_those_of_plain_enumeration(pair):
    ids = prompt()[0]
    distributions = WarpedDistributions(TreeScorer(pair[0]), TreeScorer(pair[1]), [ids], temperature=1.0, top_p=0.6)
    trees = grow(TREES["binary, without replacement"], 5, distributions, [0], seed=1)
    found = accepted_lengths(trees, distributions, ["recursive", "traversal", "block"])
    assert set(found) == {"recursive", "traversal"}  # Block verification is for chains.
    tree = trees[0]
    paths = [(0, *(tree.token(i) for i in tree.path_to(node)[1:])) for node in range(tree.num_nodes)]
    target = [distribution.double() for distribution in distributions.target(paths)]
    for name, length in found.items():
        traces = enumerate_traces(lambda rng, name=name: RULES[name].verify(tree, target.__getitem__, rng))
        assert length == pytest.approx(1 + sum(float(w) * v.num_accepted for w, v in traces), abs=1e-5)


def rows_of(lengths: dict[tuple[float, str, str], list[float]]) -> list[Row]:
    return [
        Row(f"T={t}, {i}", "medium", t, 1.0, 16, policy, rule, length)
        for (t, policy, rule), found in lengths.items()
        for i, length in enumerate(found)
    ]


ROWS = rows_of(
    {
        (1.0, "chain", "target_walk"): [1.0, 2.0, 3.0],
        (1.0, "chain", "traversal"): [1.5, 2.5, 3.5],
        (0.6, "chain", "target_walk"): [2.0, 2.0, 2.0],
        (0.6, "chain", "traversal"): [1.0, 2.0, 3.0],
    }
)


def test_gains_are_paired_within_a_temperature():
    cells = {(c.levels["temperature"], c.levels["rule"]): c for c in compared(ROWS, {"rule": "target_walk"})}
    assert cells[1.0, "target_walk"].gain is None
    assert cells[1.0, "traversal"].gain == (0.5, 0.5, 0.5)
    assert cells[1.0, "traversal"].length.value == 2.5
    gain = cells[0.6, "traversal"].gain
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (0.0, -1.0, 1.0)
    assert list(panels_of(list(cells.values()), PANELS)) == [
        f"medium, temperature {t}, top-p 1, nodes 16" for t in (1, 0.6)
    ]
    assert varied(list(cells.values())) == ["temperature", "rule"]


def test_rules_that_support_only_some_trees_of_a_policy_are_left_out():
    cells = {(1.0, "tree", "traversal"): [2.0, 3.0], (1.0, "tree", "block"): [9.0], (1.0, "chain", "block"): [1.0]}
    assert {(row.policy, row.rule) for row in whole_cells(rows_of(cells))} == {
        ("tree", "traversal"),
        ("chain", "block"),
    }


def test_a_missing_baseline_and_one_of_other_contexts_are_named():
    with pytest.raises(ConfigError, match="no baseline"):
        compared(ROWS, {"rule": "block"})
    with pytest.raises(ConfigError, match="no baseline"):
        compared(ROWS, {"temperature": "0.6"})
    with pytest.raises(ValueError, match="unknown factors"):
        read_baseline(["color=red"])
    assert read_baseline(["rule=traversal", "policy=best first, selected"])["policy"] == "best first, selected"


def test_whole_run_on_a_tiny_model(monkeypatch, tmp_path):
    model = tiny_llama(num_layers=3)
    texts = [Text(prompt(length=20, seed=seed)[0], 12) for seed in (1, 2)]
    monkeypatch.setattr(ablate, "sample_texts", lambda *_: texts)
    monkeypatch.setattr(ablate, "without_layers", lambda model, _: without_layers(model, (1,)))
    args = argparse.Namespace(
        drafts=["weak"],
        temperatures=[0.6, 1.0],
        top_p=[1.0],
        nodes=[5],
        policies=["chain", "best first, selected"],
        rules=["target_walk", "traversal", "typical_acceptance"],
        contexts=3,
        draws=2,
        new_tokens=8,
        seed=0,
    )
    progress = SimpleNamespace(add_task=lambda *_, **__: 0, advance=lambda *_: None)
    rows = ablate.measure(args, model, None, progress)  # pyright: ignore[reportArgumentType]
    assert len({row.context for row in rows}) == 6
    selected = {row.rule: row.length for row in rows if "selected" in row.policy and row.context == rows[0].context}
    assert selected["target_walk"] == pytest.approx(selected["traversal"], abs=1e-5)
    run = {"command": "c", "processor": "p", "threads": 1, "versions": {}, "seconds": 1, "load_average": 0.0}
    run |= {"contexts": 3, "draws": 2, "load_average_after": 0.0}
    text = write_results(rows, {"rule": "target_walk", "policy": "chain"}, run, tmp_path / "a")
    read = read_table(tmp_path / "a.parquet")
    assert [Row(**row) for row in read] == rows
    assert (tmp_path / "a.md").read_text() == text
    assert "typical_acceptance (lossy)" in text
    assert "weak, temperature 0.6, top-p 1, nodes 5: of 3 lossless cells" in text
    assert (tmp_path / "a.png").stat().st_size > 10_000
