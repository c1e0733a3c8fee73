"""Studies are run block by block, resumed, and compared in pairs."""

import math
from dataclasses import asdict, replace

import pytest
from helpers.written import TARGET, TOKENIZER
from pyarrow.parquet import read_table

from treespec.commands.ablate import encode_prompts as encode
from treespec.commands.models import Loaded
from treespec.errors import ConfigError
from treespec.lab.measure.study import runs as module
from treespec.lab.measure.study.cells import FACTORS, Cell
from treespec.lab.measure.study.runs import Subject, run_block, run_study
from treespec.lab.measure.study.study import Study
from treespec.lab.measure.study.summary import compare, finding, panels_of, report, varied

PLAIN, CHAIN, TREE = (Cell("suffix", policy, budget=4).without_unused() for policy in ("plain", "chain", "tree"))


def load(study):
    return TARGET, TOKENIZER, Loaded(TARGET, TOKENIZER, "toy").drafters


def study_of(*cells):
    return Study("toy", None, ("What is this?", "And that?"), cells, {"policy": "plain"}, new_tokens=6)


def test_rows_are_kept_and_resumed(tmp_path, monkeypatch):
    study, done = study_of(PLAIN, CHAIN, TREE, replace(TREE, temperature=1.0, seed=3)), []
    study = replace(study, cells=(*study.cells, replace(PLAIN, temperature=1.0, seed=3)))
    rows = run_study(study, tmp_path, load, encode, advance=done.append)
    assert done == [0, 1, 2, 3, 4]
    assert [row["policy"] for row in rows] == ["plain", "chain", "tree"] * 2 + ["tree", "plain"] * 2
    assert all(row["num_tokens"] == 6 for row in rows if row["temperature"] == 0)
    assert all(row["tokens_per_pass"] == 1 for row in rows if row["policy"] == "plain")
    assert all(row["ms_per_token"] == pytest.approx(1e3 * row["seconds"] / row["num_tokens"]) for row in rows)
    assert read_table(tmp_path / "runs.parquet").to_pylist() == rows
    (kept,) = tmp_path.glob("blocks-*.jsonl")
    _, damaged, *others = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join([damaged[:100] + "\n", *others]))
    calls = []
    monkeypatch.setattr(module, "run_block", lambda subject, block: calls.append(block) or [dict(rows[0])] * 3)
    again = run_study(study, tmp_path, load, encode, advance=done.append)
    assert len(calls) == 2
    assert len(rows) <= len(again) <= len(rows) + 2


def test_cells_are_run_in_rotating_order(monkeypatch):
    order = []
    monkeypatch.setattr(module, "run_cell", lambda subject, cell, *_: order.append(cell) or {"cell": cell})
    subject = Subject(TARGET, TOKENIZER, None, encode, 6, is_warm=True)
    for block in study_of(PLAIN, CHAIN).blocks():
        assert [row["cell"] for row in run_block(subject, block)] == [PLAIN, CHAIN]
    assert order == [PLAIN, CHAIN, CHAIN, PLAIN]


def test_batches_and_rules_that_do_not_fit(tmp_path):
    cells = [replace(cell, batch=2) for cell in (PLAIN, TREE, replace(TREE, rule="block"))]
    study = replace(study_of(*cells), new_tokens=24)
    rows = run_study(study, tmp_path, load, encode, advance=lambda done: None)
    assert [row["num_tokens"] for row in rows[:2]] == [48, 48]
    assert "block" in rows[2]["refused"]
    assert rows[2]["seconds"] is None
    found = compare(rows, FACTORS, ("prompt",), lambda levels: asdict(study_of().baseline_of(Cell(**levels))))
    assert [cell.levels["policy"] for cell in found] == ["plain", "tree"]


def rows_of(lengths):
    return [
        {"policy": policy, "temperature": t, "prompt": n, "tokens_per_pass": length, "ms_per_token": 10 / length}
        for (policy, t), found in lengths.items()
        for n, length in enumerate(found)
    ]


ROWS = rows_of(
    {("plain", 0): [1.0, 1.0, 1.0], ("tree", 0): [2.0, 4.0, 8.0], ("plain", 1): [1.0] * 3, ("tree", 1): [1.0] * 3}
)


def compared(rows=ROWS):
    return compare(rows, ("policy", "temperature"), ("prompt",), lambda cell: cell | {"policy": "plain"})


def test_differences_are_paired():
    plain, tree, _, same = compared()
    assert plain.gain is None
    assert plain.speed is None
    assert tree.gain.value == pytest.approx(11 / 3)
    assert tree.speed.value == pytest.approx(4.0)
    assert 2 - 1e-9 <= tree.speed.low <= tree.speed.high <= 8 + 1e-9
    assert (same.gain, same.speed) == ((0, 0, 0), (1, 1, 1))
    assert varied(compared()) == ["policy", "temperature"]
    assert list(panels_of(compared(), ["temperature"])) == ["temperature 0", "temperature 1"]
    assert "of 2 lossless cells 1 emit more" in finding(compared(), ["policy"])
    text = report(compared(), "Toy", "About.", "gain.png", ["temperature"])
    assert "| tree | 3 | 4.67" in text
    assert "## temperature 1" in text
    untimed = compared([row | {"ms_per_token": None} for row in ROWS])
    assert all(cell.speed is None for cell in untimed)
    assert math.isfinite(untimed[1].gain.low)


def test_a_baseline_that_was_not_run_there():
    with pytest.raises(ConfigError, match="no baseline"):
        compared(ROWS[1:])
