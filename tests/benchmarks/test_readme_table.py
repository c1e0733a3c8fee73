"""README's tables of times are those of the committed results."""

import json

import pytest

from benchmarks.common.estimates import ratio
from benchmarks.common.settings import RESULTS
from benchmarks.peers.contestants import AUTO, OPTIMIZED, PLAIN
from benchmarks.peers.report import complete, ms_per_token
from benchmarks.readme_table import PEERS, README, peers_part, written


def test_readme_has_the_numbers_of_the_results():
    text = README.read_text()
    assert written(text) == text, "python -m benchmarks.readme_table"
    found = json.loads((RESULTS / PEERS).read_text())["found"]["T = 0"]
    prompts = complete(found["prompts"])
    auto, plain, optimized = (ms_per_token(prompts, name) for name in (AUTO, PLAIN, OPTIMIZED))
    begin = " ".join(text.split("## Try it")[0].split())
    assert f"{len(prompts)} prompts" in begin
    assert f"{ratio(plain, auto).value:.2f} times as fast as plain `generate`" in begin
    assert f"{ratio(optimized, auto).value:.2f} times as fast as plain decoding from the same optimized layers" in begin
    outputs = [run["agreement"] for runs in prompts.values() for run in runs.values()]
    assert set(outputs) == {"identical"}
    assert f"all {len(outputs):,} greedy outputs of the first table are identical" in text


def test_peers_are_sorted_by_time():
    runs = {
        name: {"seconds": seconds, "tokens": [1, 2, 3], "reading": 0.0, "agreement": "identical"}
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
