"""Studies as files: what is read, what is refused."""

import pytest

from treespec.errors import ConfigError
from treespec.lab.measure.study.cells import SHAPES, Cell
from treespec.lab.measure.study.study import read_study
from treespec.policies import Chain

FULL = """
name: Trees
prompts: [one, two, three]
new_tokens: 8
grid:
  drafter: [suffix, [recycling, suffix]]
  policy: [plain, chain, tree]
  budget: [4, 8]
  temperature: [0, 1]
  processors: [{}, {repetition_penalty: 1.2}]
  seed: [0, 1]
"""


def read(tmp_path, text):
    (tmp_path / "study.yaml").write_text(text)
    return read_study(tmp_path / "study.yaml", lambda file: ["default"] if file is None else [file.name])


def test_equal_combinations_are_one_cell(tmp_path):
    study = read(tmp_path, FULL)
    greedy = [cell for cell in study.cells if cell.temperature == 0]
    assert {cell.seed for cell in greedy} == {0}
    assert len(greedy) == 2 * (1 + 2 * 2 * 2), "plain once, and drafter x policy x budget, by processors"
    assert len(study.cells) == 3 * len(greedy), "sampled with two seeds"
    assert {cell.drafter for cell in study.cells} == {"none", "suffix", "recycling + suffix"}
    assert study.baseline_of(greedy[-1]).policy == "plain"
    assert len(study.blocks()) == 3 * 2 * 3
    assert all(len(block.cells) == 9 for block in study.blocks())
    assert len(set(study.blocks())) == len(study.blocks())


def test_defaults_prompts_and_batches(tmp_path):
    study = read(tmp_path, "grid: {budget: [4], policy: [plain, tree]}")
    assert study.prompts == ("default",)
    assert study.name == "study"
    assert study.model is None
    assert study.cells[1].drafter == "head + warm"
    (tmp_path / "model").mkdir()
    (tmp_path / "more.txt").touch()
    study = read(tmp_path, "model: model\nprompts: more.txt\ngrid: {policy: [plain, auto]}")
    assert study.model == str(tmp_path / "model")
    assert study.prompts == ("more.txt",)
    assert study.cells[1].drafter == "recycling + suffix"
    study = read(tmp_path, "prompts: [a, b, c]\ngrid: {batch: [1, 2], policy: [plain, tree]}")
    assert [block.prompts for block in study.blocks()] == [("a",), ("b",), ("c",), ("a", "b")]


@pytest.mark.parametrize("name", SHAPES)
def test_policies_have_names(name):
    assert Cell("suffix", name, budget=9).policy_object().max_nodes <= 64
    assert Cell("suffix", name, budget=9, depth=2).policy_object()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not YAML"),
        ("grid: 3", "must be a mapping with a grid"),
        ("grid: {colour: [red]}", "unknown factors colour; known are drafter, policy"),
        ("grid: {}\ncolour: red", "unknown keys colour; known are baseline"),
        ("grid: {budget: 8}", "needs a list of levels"),
        ("grid: {budget: [many], policy: [plain, tree]}", "budget must be a positive int"),
        ("grid: {policy: [oak]}", "policy must be one of plain, auto"),
        ("grid: {rule: [best], policy: [plain, tree]}", "no verification rule is called 'best'"),
        ("grid: {temperature: [hot]}", "temperature must not be negative"),
        ("grid: {seed: [-1]}", "seed must be an int"),
        ("grid: {processors: [3]}", "processors must be mappings"),
        ("grid: {policy: [plain]}\nmodel: 3", "model must be a hub name"),
        ("grid: {drafter: [3]}", "drafter must be names"),
        ("grid: {policy: [chain]}", "the baseline {'policy': 'plain'} is not a cell"),
        ("grid: {policy: [plain]}\nbaseline: 3", "baseline must be levels"),
        ("grid: {policy: [plain]}\nnew_tokens: 0", "new_tokens must be a positive int"),
        ("grid: {policy: [plain]}\nprompts: missing.txt", "no file of prompts"),
        ("grid: {policy: [plain]}\nprompts: [3]", "prompts must be a file or a list of texts"),
        ("grid: {policy: [plain], batch: [2]}", "fewer than its smallest batch"),
    ],
)
def test_what_is_not_a_study_is_named(tmp_path, text, words):
    with pytest.raises(ConfigError) as found:
        read(tmp_path, text)
    assert words in str(found.value)


def test_a_policy_is_added_by_registering_it():
    SHAPES.register("mine", lambda budget, depth: Chain(budget))
    try:
        assert Cell("suffix", policy="mine", budget=3).policy_object().max_nodes == 4
    finally:
        SHAPES.forget("mine")
    with pytest.raises(ConfigError, match="mine"):
        Cell("suffix", policy="mine")


def test_no_policy_has_the_name_of_plain_decoding():
    with pytest.raises(ConfigError, match="called 'plain' is there already"):
        SHAPES.register("plain", lambda budget, depth: Chain(budget))
