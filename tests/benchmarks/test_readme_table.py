"""README's tables of times are those of the committed results."""

import json

import pytest

from benchmarks.common.settings import RESULTS
from benchmarks.peers.contestants import BLOCK, PLAIN
from benchmarks.peers.report import complete, speed
from benchmarks.readme_table import PEERS, README, written
from benchmarks.speed_up import TREE


def test_readme_has_the_numbers_of_the_results():
    text = README.read_text()
    assert written(text) == text, "python -m benchmarks.readme_table"
    prompts = complete(json.loads((RESULTS / PEERS).read_text())["found"]["T = 0"]["prompts"])
    outputs = [run["agreement"] for runs in prompts.values() for run in runs.values()]
    assert set(outputs) == {"identical"}
    assert f"all {len(outputs):,} greedy outputs of the first table are identical" in text


def test_readme_begins_with_what_its_first_block_gives():
    """Times plain of the block itself, measured on prompts that nothing was tuned on."""
    text = README.read_text()
    data = json.loads((RESULTS / "speed_up.json").read_text())
    begin = " ".join(text.split("## Try it")[0].split())
    for name, words in (("T = 0", "as fast as plain `generate`"), ("T = 1", "when sampling at temperature 1")):
        block, tree = (speed(data["found"][name], who, PLAIN, is_whole=True).split()[0] for who in (BLOCK, TREE))
        assert f"{block} times {words}" in begin
        assert tree in text.split("## Measured")[1]
    assert data["differing"] == []


def test_a_missing_mark_is_named():
    with pytest.raises(ValueError, match="<!-- peers -->"):
        written("no marks")
