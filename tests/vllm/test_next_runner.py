"""Trees in vLLM's V2 runner, examples/vllm_next_runner.py: a whole engine, whose kernels Triton's interpreter runs.

Passes of fixed shapes, examples/vllm_fixed_shapes.py, are replayed: what a replay read elsewhere would change tokens.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.engines.churn import ENGINE, VOCAB, is_right, random_requests
from helpers.engines.distribution import NUM_NEW, PROMPT, exact
from helpers.engines.engine import run_jobs
from helpers.engines.models import tiny_llama

from treespec.testing import g_test

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

COUNTED = "helpers.engines.fixed_shapes"
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "detokenize": False}
PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 7, 8, 7], list(range(30)), [9], [3, 3, 3, 1]]
REQUESTS = random_requests(30, VOCAB, seed=4)
JOBS: dict[str, dict[str, Any]] = {
    "churn": {"churn": REQUESTS, "has_aborts": False},
    "logprobs": {"prompts": PROMPTS, "params": {**GREEDY, "logprobs": 3}},
    "chains": {
        "prompts": PROMPTS,
        "params": [
            {**GREEDY, "presence_penalty": 0.6, "repetition_penalty": 1.2},
            {**GREEDY, "frequency_penalty": 0.5},
            {**GREEDY, "allowed_token_ids": list(range(20))},
            {**GREEDY, "min_tokens": 10, "stop_token_ids": list(range(0, VOCAB, 5)), "ignore_eos": False},
            GREEDY,
        ],
    },
}


def trees(model: str, **options: Any) -> dict[str, Any]:
    return {
        **ENGINE,
        "model": model,
        "worker_cls": "vllm_next_runner.TreeWorker",
        "scheduler_cls": "treespec.vllm.scheduler.TreeScheduler",
        "async_scheduling": False,
        "speculative_config": {"method": "ngram", "prompt_lookup_max": 1, "num_speculative_tokens": 7},
        "additional_config": {"treespec": options},
    }


@pytest.fixture(scope="module")
def plain(folders: tuple[str, str]) -> dict[str, Any]:
    return run_jobs({**ENGINE, "model": folders[0], "num_gpu_blocks_override": 10}, JOBS, is_next=True)


def test_trees_are_plain_greedy_decoding(folders: tuple[str, str], plain: dict[str, Any]) -> None:
    model, head = folders
    compare({**trees(model, tree=8, head=head), "num_gpu_blocks_override": 13}, plain)


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_fixed_shapes_are_plain_greedy_decoding(
    folders: tuple[str, str], plain: dict[str, Any], is_asynchronous: bool
) -> None:
    """With a head in steps one by one; with lookups in steps that are planned ahead, and with few segments."""
    model, head = folders
    engine = trees(model, tree=8, **({} if is_asynchronous else {"head": head}))
    engine |= {"worker_cls": f"{COUNTED}.CountedWorker", "num_gpu_blocks_override": 16}
    if is_asynchronous:
        engine = {**planned_ahead(engine), "num_gpu_blocks_override": 20}
        engine["additional_config"]["segments"] = 3
    stats = compare(engine, plain)
    assert stats["replays"] > stats["padded replays"] > 10
    assert (stats.get("planned ahead", 0) > 20) == is_asynchronous


def planned_ahead(engine: dict[str, Any]) -> dict[str, Any]:
    """The engine with fixed shapes and asynchronous steps."""
    speculation = {**engine["speculative_config"], "method": "ngram_gpu"}
    classes = {"worker_cls": f"{COUNTED}.CountedWorker", "scheduler_cls": f"{COUNTED}.AsyncOnCPUs"}
    return {**engine, **classes, "speculative_config": speculation}


def compare(engine: dict[str, Any], plain: dict[str, Any]) -> dict[str, float]:
    """Statistics of trees in an engine whose outputs are plain vLLM's."""
    jobs = {**JOBS, "churn": {**JOBS["churn"], "has_aborts": True}}
    found = run_jobs(engine, jobs, is_next=True)
    outputs = found["churn"].pop("outputs")
    assert all(map(is_right, REQUESTS, outputs, plain["churn"]["outputs"]))
    assert found["churn"] == {"blocks": 0, "requests": 0, "drafts": 0}
    for job in list(JOBS)[1:]:
        assert found[job] == plain[job], job
    assert found["stats"]["num_trees"] > 10
    assert found["stats"]["num_accepted_tokens"] > 10
    return found["stats"]


def test_samples_of_steps_planned_ahead_follow_the_models_distribution(tmp_path: Path) -> None:
    model, number = tiny_llama(tmp_path, 5), 300
    names = {"T = 1": {}, "cool": {"temperature": 0.7}}
    base = {"temperature": 1.0, "max_tokens": NUM_NEW, "ignore_eos": True, "detokenize": False}
    jobs = {name: {"prompts": [PROMPT] * number, "params": {**base, **params}} for name, params in names.items()}
    found = run_jobs({**planned_ahead(trees(str(tmp_path), tree=8)), "max_num_seqs": 64}, jobs, is_next=True)
    for name, params in names.items():
        counts = Counter(tuple(one["ids"]) for one in found[name])
        assert g_test(counts, exact(model, params)) > 1e-4
    assert found["stats"]["num_accepted_tokens"] > number / 4
