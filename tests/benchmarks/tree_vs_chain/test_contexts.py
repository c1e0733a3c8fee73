"""Speed by context at test size: rows of exact length, caches that are there at the start, the report."""

import argparse
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import eagle3_files
from helpers.head_files import SPECULATORS
from helpers.tiny import tiny_llama

from benchmarks.common.prompts import Prompt
from benchmarks.common.store import Store
from benchmarks.tree_vs_chain import contexts, contexts_report, run
from benchmarks.tree_vs_chain.contexts import AUTO, DRAFTERS, GROWING, HEAD, MERGED, NUM_ROWS, PLAIN, SHAPES, Cell
from treespec import Eagle3, SuffixLookup, TokenRecycling, TreeSpeculation, load_drafter
from treespec.hf.introspect import CACHE_NAME

POOL = [Prompt(f"{kind}{number}", str(number)) for kind in ("HumanEval/", "gsm8k-") for number in range(12)]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A tiny model and head; every prompt has 6 to 9 tokens, the first of them 1."""

    def encode(_, prompts):
        (prompt,) = prompts
        generator = torch.Generator().manual_seed(int(prompt.text) + 100 * prompt.name.startswith("gsm"))
        ids = torch.randint(2, 64, (1, 6 + int(prompt.text) % 4), generator=generator)
        ids[0, 0] = 1
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    warm_start = SimpleNamespace(drafters=lambda: [TokenRecycling(), SuffixLookup()])
    monkeypatch.setattr(contexts, "encode", encode)
    monkeypatch.setattr(contexts, "warm_start", lambda: warm_start)
    monkeypatch.setattr("treespec.hf.generation.decode.pass_times", lambda model: {1: 1.0, 16: 1.2})
    model, made = tiny_llama(), eagle3_files.shape(extras=("embedding",))
    folder = eagle3_files.write(tmp_path / "head", made, eagle3_files.random_tensors(made), SPECULATORS)
    head = load_drafter(folder, model, hidden_layers=(1, 2, 0))
    assert isinstance(head, Eagle3)
    return contexts.Bench(model, lambda text, **_: {"input_ids": [1, 2 + len(text), 7]}, head, POOL, 24)


def test_rows_end_with_their_prompt_and_have_the_length_of_the_context(bench):
    assert len(bench.prompts) == NUM_ROWS + 1
    assert [p.name.startswith("gsm") for p in bench.prompts[:4]] == [False, True, False, True]
    own = bench.ids(bench.prompts[0], 8)
    row = bench.ids(bench.prompts[0], 40)
    assert len(row) == 40
    assert row[-6:] == own[-6:]
    assert bench.ids(bench.prompts[0], 4) == own[-4:]
    with pytest.raises(ValueError, match="a context of 4000 needs more"):
        bench.ids(bench.prompts[0], 4000)


def test_trees_from_copied_caches_are_those_of_a_call_that_reads_the_prompt(bench):
    group = bench.group(24, [0, 1])
    copied, reading = bench.filled_head(), type(bench._head)(bench._head.head, bench._head.hidden_layers)
    copied.prompt_keys = group.keys
    calls = []
    for head, cache in ((copied, contexts.twin_cache(group.cache)), (reading, None)):
        speculation = TreeSpeculation(head, tree=6, record_steps=True)
        options = {} if cache is None else {CACHE_NAME: cache}
        inputs = {"input_ids": group.ids, "attention_mask": torch.ones_like(group.ids), **options}
        out = bench.model.generate(**inputs, max_new_tokens=8, do_sample=False, custom_generate=speculation)
        calls.append((out.tolist(), [[tree.tokens.tolist() for tree in step.trees] for step in speculation.steps]))
    assert calls[0] == calls[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_cell_of_a_tiny_model(bench, tmp_path, temperature):
    args = argparse.Namespace(contexts=[24], batches=[2], temperatures=[temperature], drafters=[MERGED], groups=2)
    args.minutes, args.new_tokens, args.seed = 5.0, 6, 0
    progress = SimpleNamespace(add_task=lambda *_, **__: 0, advance=lambda *_: None)
    store = Store(tmp_path / "runs.jsonl")
    found = contexts.measure(args, bench, store, progress)  # pyright: ignore[reportArgumentType]
    cell = found[f"context 24, batch 2, T={temperature:g}"]
    assert len(cell["runs"]) == 2
    for runs in cell["runs"].values():
        assert [*runs] == [PLAIN, GROWING, *(f"{MERGED}, {shape}" for shape in SHAPES)]
        for result in runs.values():
            assert result["tokens"] == 12
            assert "outputs" not in result if temperature else result["outputs"]["wrong"] == 0
    assert contexts.measure(args, bench, store, progress)[cell_name(cell)]["runs"] == cell["runs"]  # pyright: ignore


def cell_name(cell):
    return Cell(cell["context"], cell["batch"], cell["temperature"]).name


def test_an_output_that_no_pass_supports_is_wrong(bench):
    contestants = contexts.Contestants(bench, Cell(24, 1, 0.0), [HEAD], 6)
    group = bench.group(24, [0])
    _, (plain,) = contestants._decode(PLAIN, group, 0)
    other = [*plain[:3], (plain[3] + 1) % 64, *plain[4:]]
    rows = {"identical": plain, "wrong": other}
    for kind, row in rows.items():
        assert contestants._outputs(group, [plain], [row])[kind] == 1
    assert contestants._outputs(group, [plain], [plain[:4]])["wrong"] == 1, "a text that ends early"
    assert contestants._outputs(group, [[*plain[:-1], 99]], [plain])["tied"] == 1


def test_the_cheapest_cells_come_first():
    todo = contexts.cells([256, 1024, 4096], [1, 2, 4, 8], [0.0, 1.0])
    assert todo[:2] == [Cell(256, 1, 0.0), Cell(256, 1, 1.0)]
    assert todo[-1] == Cell(4096, 8, 1.0)
    assert [Cell(256, batch, 0.0).num_groups(6) for batch in (1, 2, 4, 8)] == [6, 4, 2, 1]
    assert [Cell(4096, batch, 0.0).num_groups(6) for batch in (1, 8)] == [2, 1]
    assert Cell(1024, 4, 0.0).drafters(None) == [*DRAFTERS]
    assert Cell(4096, 4, 0.0).drafters(None) == [MERGED]


def made_up(context: int, batch: int, temperature: float, num_groups: int) -> dict:
    names = [PLAIN, GROWING, *(f"{drafter}, {shape}" for drafter in DRAFTERS for shape in SHAPES)]
    seconds = {PLAIN: 1.0, GROWING: 0.9} | {name: 0.8 for name in names if "chain" in name}
    seconds |= {name: 0.5 for name in names if name.endswith(AUTO)} | {f"{HEAD}, chain of 4": 0.625}
    result = {"tokens": 10, "choices": {"tree": 3, "plain": 1}, "outputs": {"identical": 1, "tied": 0, "wrong": 0}}
    runs = {
        f"gsm8k-{number}": {name: result | {"seconds": (1 + number) * seconds.get(name, 2.0)} for name in names}
        for number in range(num_groups)
    }
    return {"context": context, "batch": batch, "temperature": temperature, "runs": runs, "loads": [0.5]}


def test_report_of_made_up_numbers(tmp_path):
    settings = {"command": "c", "processor": "p", "threads": 1, "versions": {}, "seed": 0, "seconds": 1}
    settings |= {"load_average": 0.0, "load_average_after": 0.0}
    found = [made_up(256, 1, 0.0, 3), made_up(1024, 1, 0.0, 1), made_up(256, 4, 1.0, 2)]
    found[1]["runs"]["gsm8k-0"][f"{MERGED}, {AUTO}"]["outputs"] = {"identical": 0, "tied": 0, "wrong": 1}
    text = contexts_report.write({"cells": {cell_name(cell): cell for cell in found}, "calls": [settings]}, tmp_path)
    assert (tmp_path / "contexts.png").stat().st_size > 10_000
    assert "| 1 | 1024 | 1 | 100.0 | 1.11 |" in text, "a single group has no interval"
    head = text.split("### Head")[1].splitlines()[4]
    assert head.startswith("| 1 | 256 | 3 | 1.60, 4 |"), "equal ratios have no interval either"
    assert "2.00" in head
    assert "1.25" in head
    assert "tree 75%, plain 25%" in head
    assert "1 WRONG" in text.split("### Merged")[1].split("### Head")[0]
    assert "| GSM8K | 4 |" in text.split("## T = 1")[0]


def test_drafters_belong_to_their_part(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tree_vs_chain", "time", "--drafters", MERGED])
    with pytest.raises(SystemExit):
        run._arguments()
    assert "time has no drafters ['merged']" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["tree_vs_chain", "contexts", "--drafters", MERGED])
    assert run._arguments().drafters == [MERGED]
