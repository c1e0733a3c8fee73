"""Greedy decoding with trees is identical to plain vLLM's, under vLLM's features, in the real engine.

The model is a tiny random one with the vocabulary and the tokenizer of SmolLM2.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.engines.engine import ENVIRONMENT, MODEL, PROMPTS, run_jobs
from helpers.engines.models import random_adapters, tiny_smollm2
from helpers.engines.planted_bugs import STRUCTURAL

pytest.importorskip("vllm.config")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not MODEL.is_dir(), reason="SmolLM2 is not converted: make demo")]

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
ENGINE = {"max_model_len": 96, "max_num_seqs": 5, "max_num_batched_tokens": 64, "enable_prefix_caching": True}
"""More requests than seats, prompts read in chunks, a cache so small that requests are preempted."""
NUM_BLOCKS = 12
JOBS: dict[str, dict[str, Any]] = {
    "many requests, chunks, preemption": {"prompts": PROMPTS, "params": {**GREEDY, "max_tokens": 70}},
    "prefix cache": {"prompts": PROMPTS[:4], "params": GREEDY},
    "end of the context": {"prompts": PROMPTS[:2], "params": {**GREEDY, "max_tokens": 1000}},
    "logprobs": {"prompts": PROMPTS[:3], "params": {**GREEDY, "logprobs": 3, "prompt_logprobs": 1}},
    "penalties": {
        "prompts": PROMPTS[:4],
        "params": {**GREEDY, "presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
    },
    "bad words": {"prompts": PROMPTS[:4], "params": {**GREEDY, "bad_words": [" the", " is a", "."]}},
    "allowed tokens and logit bias": {
        "prompts": PROMPTS[:3],
        "params": [
            {**GREEDY, "allowed_token_ids": list(range(200, 2000))},
            {**GREEDY, "logit_bias": {"260": 4.0}},
            GREEDY,
        ],
    },
    "min tokens": {"prompts": PROMPTS[:4], "params": {**GREEDY, "ignore_eos": False, "min_tokens": 10}},
    "stop tokens": {"prompts": PROMPTS[:4], "params": {**GREEDY, "stop_token_ids": list(range(0, 49152, 7))}},
    "stop string": {"prompts": PROMPTS[:4], "params": {**GREEDY, "ignore_eos": False, "stop": ["\n", " and"]}},
    "grammar for every other request": {
        "prompts": PROMPTS[:4],
        "params": [GREEDY, {**GREEDY, "regex": r"[A-Z][a-z]+( [a-z]+){3,12}\."}] * 2,
    },
    "a grammar along branches": {
        "prompts": PROMPTS[:4],
        "params": [{**GREEDY, "max_tokens": 24, "regex": r"(the |tree |river |and ){2,30}"}] * 2
        + [{"temperature": 1.0, "top_k": 1, "max_tokens": 24, "regex": r"(the |tree |river |and ){2,30}"}] * 2,
    },
    "ragged lengths": {"prompts": PROMPTS[:4], "params": [{**GREEDY, "max_tokens": 1 + 3 * k} for k in range(4)]},
    "two answers each": {"prompts": PROMPTS[:2], "params": {**GREEDY, "n": 2, "temperature": 1.0, "top_k": 1}},
}
JOBS["all kinds in one batch"] = {
    "prompts": [prompt for job in JOBS.values() for prompt in job["prompts"][:2]],
    "params": [
        params
        for job in JOBS.values()
        for params in (job["params"][:2] if isinstance(job["params"], list) else [job["params"]] * 2)
    ],
}


LORA = {"enable_lora": True, "max_lora_rank": 8, "num_gpu_blocks_override": NUM_BLOCKS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_smollm2(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def plain(model: str) -> dict[str, Any]:
    return run_jobs({**ENGINE, "model": model, "num_gpu_blocks_override": NUM_BLOCKS}, JOBS)


@pytest.fixture(scope="module")
def trees(model: str) -> dict[str, Any]:
    speculation = {"method": "treespec", "num_speculative_tokens": 11, "tree": 12}
    engine = {**ENGINE, "model": model, "num_gpu_blocks_override": NUM_BLOCKS + 4}
    return run_jobs({**engine, "speculative_config": speculation}, JOBS)


@pytest.mark.parametrize("job", JOBS)
def test_tokens_reasons_and_logprobs_are_those_of_plain_vllm(plain: dict, trees: dict, job: str) -> None:
    assert trees[job] == plain[job]


def test_two_adapters_and_the_base_model_share_batches(model: str, tmp_path: Path) -> None:
    # In chunks; then the same prompts under other adapters, then blocks of the prefix cache.
    first, second = map(str, random_adapters(tmp_path, Path(model), 2))
    folders = [None, first, second, None, second, first]
    params = {**GREEDY, "logprobs": 2}
    jobs = {
        "first": {"prompts": PROMPTS, "params": params, "adapters": folders},
        "shifted": {"prompts": PROMPTS, "params": params, "adapters": folders[1:] + folders[:1]},
        "cached": {"prompts": PROMPTS, "params": params, "adapters": folders},
    }
    engine = {**ENGINE, **LORA, "model": model, "max_loras": 3}  # One more than adapters: see docs/vllm.md.
    plain = run_jobs(engine, jobs)
    speculation = {"method": "treespec", "drafter": "recycling", "tree": 6}
    trees = run_jobs({**engine, "speculative_config": speculation, "num_gpu_blocks_override": NUM_BLOCKS + 4}, jobs)
    assert trees["stats"]["num_trees"] > 10
    assert [one["ids"] for one in plain["first"]] != [one["ids"] for one in plain["shifted"]]
    assert {name: trees[name] for name in jobs} == {name: plain[name] for name in jobs}


def test_grammars_after_a_reasoning_parsers_token_run_chains(tmp_path: Path) -> None:
    for file in tiny_smollm2(tmp_path).glob("*token*"):
        text = file.read_text().replace("<issue_start>", "<think>").replace("<issue_closed>", "</think>")
        file.write_text(text)
    params = {**GREEDY, "max_tokens": 40, "regex": r"(the |tree |river |and ){2,30}"}
    job = {"prompts": [f"<think>hm</think>{PROMPTS[0]}", *(f"<think>{text}" for text in PROMPTS[:5])], "params": params}
    engine = {**ENGINE, "model": str(tmp_path), "structured_outputs_config": {"reasoning_parser": "deepseek_r1"}}
    plain = run_jobs(engine, {"thinking": job})
    trees = run_jobs({**engine, "speculative_config": {"method": "treespec", "tree": 12}}, {"thinking": job})
    assert trees["thinking"] == plain["thinking"]
    assert trees["stats"]["num_accepted_tokens"] > 3
    assert trees["stats"]["num_trees"] == 0


@pytest.mark.parametrize("bug", STRUCTURAL)
def test_a_planted_mistake_changes_texts(plain: dict, model: str, bug: str) -> None:
    name = "many requests, chunks, preemption"
    engine = {**ENGINE, "model": model, "num_gpu_blocks_override": NUM_BLOCKS + 4}
    found = run_jobs(
        {**engine, "speculative_config": {"method": "treespec", "tree": 12}}, {name: JOBS[name]}, planted=bug
    )
    assert found["stats"]["num_trees"] > 0
    assert found[name] != plain[name]


def test_trees_were_verified(trees: dict) -> None:
    stats, metrics = trees["stats"], trees["metrics"]
    assert stats["num_trees"] > 30
    assert stats["num_accepted_tokens"] > 30
    assert metrics["vllm:num_preemptions"] > 0
    # vLLM compiles grammars in threads: which requests meet, and share the scratch blocks, depends on the machine.
    assert trees["counts"]["a grammar along branches"]["num_trees"] > 0
    assert trees["counts"]["a grammar along branches"]["num_accepted_tokens"] > 3
    assert metrics["vllm:spec_decode_num_accepted_tokens"] <= stats["num_accepted_tokens"]


def test_the_snippet_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    snippet = snippet.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(MODEL))
    assert '"drafter": "merge"' in snippet
    snippet = snippet.replace('"drafter": "merge"', '"drafter": "merge", "tree": 16')  # Not by the clock.
    environment = {**os.environ, **ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, "-c", snippet]
    done = subprocess.run(command, env=environment, timeout=250, capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[-1]) > 1
