"""README's tables of times are those of the committed results."""

import json

import pytest

from benchmarks.common.settings import RESULTS
from benchmarks.peers.contestants import BLOCK, PLAIN
from benchmarks.peers.report import complete, speed
from benchmarks.readme_table import PEERS, README, peers_part, written
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


def test_peers_are_sorted_by_time():
    runs = {
        name: {"seconds": seconds, "tokens": 3, "reading": 0.0, "agreement": "identical"}
        for name, seconds in (("plain", 0.4), ("optimized", 0.3), ("vllm", 0.8), ("auto", 0.1))
    }
    found = {
        "prompts": {"gsm8k-1": runs},
        "run": {"new_tokens": 3, "threads": 1, "command": "python -m benchmarks.peers --prompts 1"},
    }
    rows = peers_part({"found": {"T = 0": found}}).splitlines()[4:]
    assert [row.split(" | ")[1] for row in rows] == ["400.0", "200.0", "150.0", "50.0"]
    assert rows[-1].endswith("| 4.00 | 3.00 |")


def test_a_missing_mark_is_named():
    with pytest.raises(ValueError, match="<!-- peers -->"):
        written("no marks")
