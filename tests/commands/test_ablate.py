"""`treespec ablate`."""

import json
from dataclasses import replace
from functools import partial

import pytest
from helpers import cli
from pyarrow.parquet import read_table

from treespec.commands.ablate import load_subject
from treespec.cpu.linear_kernels import has_fast_linears
from treespec.errors import CheckpointError, ConfigError
from treespec.lab.measure.study.study import read_study

STUDY = """
model: model
prompts: ["What is this?", "And that?"]
new_tokens: 4
grid: {drafter: [suffix], policy: [plain, chain, tree], budget: [3], temperature: [0, 1]}
"""

invoke, succeed = partial(cli.invoke, "ablate"), partial(cli.succeed, "ablate")


@pytest.fixture
def study(saved, tmp_path):
    (tmp_path / "trees.yaml").write_text(STUDY)
    return tmp_path / "trees.yaml"


def test_a_study_is_run_and_resumed(study, tmp_path):
    found = json.loads(succeed(study, "--json").stdout)
    assert [cell["levels"]["policy"] for cell in found] == ["plain", "chain", "tree"] * 2
    assert found[0]["gain"] is None
    assert found[1]["speed"]["low"] <= found[1]["speed"]["value"] <= found[1]["speed"]["high"]
    folder = tmp_path / "trees"
    assert len(read_table(folder / "runs.parquet")) == 12
    assert "## temperature 1" in (folder / "report.md").read_text()
    assert "weights on a CPU are packed" in (folder / "report.md").read_text()
    for picture in ("gain.png", "speed.png"):
        assert (folder / picture).stat().st_size > 10_000
    before = (folder / "runs.parquet").read_bytes()
    succeed(study)
    assert (folder / "runs.parquet").read_bytes() == before, "nothing was run again"


def test_weights_are_packed_by_default_as_elsewhere(saved, study, tmp_path):
    given = read_study(study, lambda file: [])
    for is_packed in (True, False):
        model, _, drafters = load_subject(replace(given, is_packed=is_packed))
        draft, _ = drafters([str(saved), "suffix"])
        assert has_fast_linears(model) == has_fast_linears(draft) == is_packed
    succeed(study, "--no-pack")
    assert "no weights are packed" in (tmp_path / "trees" / "report.md").read_text()


@pytest.mark.slow
def test_several_processes_run_the_same_cells(study, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    succeed(study, "--out", one)
    succeed(study, "--out", two, "--workers", "2")
    kept = ["policy", "temperature", "prompt", "num_tokens", "tokens_per_pass"]
    rows = [read_table(out / "runs.parquet", columns=kept).to_pylist() for out in (one, two)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("dtype: 5\ngrid: {policy: [plain, tree]}", ConfigError, "dtype must be one of"),
        ("model: no/such/folder\ngrid: {policy: [plain, chain]}", CheckpointError, "cannot load"),
        ("model: model\ngrid: {policy: [plain], processors: [{colour: red}]}", ConfigError, "cannot be run"),
        ("model: model\ngrid: {policy: [plain, tree], drafter: [head]}", ConfigError, "ships for SmolLM2"),
    ],
)
def test_wrong_studies_are_named(study, tmp_path, text, error, words):
    study.write_text(text)
    found = invoke(study, "--out", tmp_path / "out").exception
    assert isinstance(found, error), found
    assert words in str(found)
    assert not (tmp_path / "out").exists()
