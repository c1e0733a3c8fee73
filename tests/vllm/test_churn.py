"""Requests with random arrivals, lengths, aborts and preemptions: nothing leaks, nothing differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.engines.churn import ENGINE, TREES, VOCAB, random_requests, run_part
from helpers.engines.engine import ENVIRONMENT, SMALL, run_jobs
from helpers.engines.models import tiny_gemma3, tiny_gpt_oss, tiny_llama

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

NUM_REQUESTS = int(os.environ.get("TREESPEC_VLLM_REQUESTS", "120"))


def test_requests_come_and_go(tmp_path: Path) -> None:
    found = run_part(tmp_path, NUM_REQUESTS, seed=0)
    assert found["left"] == {"blocks": 0, "requests": 0, "drafts": 0}
    assert found["identical"] == NUM_REQUESTS
    assert found["preemptions"] > 0
    assert found["aborted"] > NUM_REQUESTS / 20
    assert found["trees"] > NUM_REQUESTS / 10
    assert found["cut"] > 0
    assert found["drafted"] == found["verified"]  # Cut before they are drafts: nothing is computed in vain.


def test_class_paths_serve_without_the_entry_point(tmp_path: Path) -> None:
    tiny_llama(tmp_path, VOCAB)
    engine = {
        "model": str(tmp_path),
        "skip_tokenizer_init": True,
        "max_model_len": 64,
        "max_num_seqs": 2,
        "worker_cls": "treespec.vllm.worker.TreeCPUWorker",
        "scheduler_cls": "treespec.vllm.scheduler.TreeScheduler",
        "speculative_config": {"model": "treespec.vllm.Proposer", "num_speculative_tokens": 7},
        "additional_config": {"treespec": {"tree": 8, "drafter": "recycling"}},
    }
    params = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "detokenize": False}
    prompts = [[1, 2, 3], [4, 5, 4, 5]]
    jobs = {"greedy": {"prompts": prompts, "params": params}}
    refused = {"refused": {"prompts": prompts, "params": [params, {**params, "logprob_token_ids": [1]}]}}
    found = run_jobs(engine, {**refused, **jobs}, more={"VLLM_PLUGINS": ""})
    plain = run_jobs({name: engine[name] for name in list(engine)[:4]}, jobs)
    assert found["greedy"] == plain["greedy"]
    assert found["stats"]["num_draft_tokens"] > 0
    assert found["refused"][0] == plain["greedy"][0]
    assert found["refused"][1]["reason"] == "error"


@pytest.mark.parametrize("make", [tiny_gemma3, tiny_gpt_oss])
def test_layers_with_and_without_a_window_share_their_blocks(
    tmp_path: Path, make: Callable[[Path, int], object]
) -> None:
    make(tmp_path, VOCAB)
    engine = {**ENGINE, "model": str(tmp_path)}
    jobs = {"churn": {"churn": random_requests(60, VOCAB, seed=2), "has_aborts": False}}
    plain = run_jobs({**engine, "num_gpu_blocks_override": 20}, jobs)
    trees = run_jobs({**engine, "num_gpu_blocks_override": 60, "speculative_config": {**TREES, "tree": 8}}, jobs)
    assert trees["churn"]["outputs"] == plain["churn"]["outputs"]
    assert trees["stats"]["num_trees"] > 10


@pytest.mark.parametrize("make", [tiny_gemma3, tiny_gpt_oss])
def test_several_groups_of_caches_serve_chains(tmp_path: Path, make: Callable[[Path, int], object]) -> None:
    make(tmp_path, VOCAB)
    engine = {**ENGINE, "model": str(tmp_path), "num_gpu_blocks_override": 40}
    jobs = {"churn": {"churn": random_requests(60, VOCAB, seed=2), "has_aborts": False}}
    asked = {"speculative_config": TREES, "disable_hybrid_kv_cache_manager": False}
    chains = run_jobs({**engine, **asked}, jobs)
    assert chains["churn"] == {**run_jobs(engine, jobs)["churn"], "drafts": 0}
    assert chains["stats"]["num_trees"] == 0
    assert chains["stats"]["num_accepted_tokens"] > 10


def test_a_compiled_model_decodes_as_plain_vllms(tmp_path: Path) -> None:
    tiny_llama(tmp_path, VOCAB)
    engine = {**ENGINE, "model": str(tmp_path), "enforce_eager": False, "num_gpu_blocks_override": 40}
    jobs = {"churn": {"churn": random_requests(60, VOCAB, seed=2), "has_aborts": False}}
    trees = run_jobs({**engine, "speculative_config": {**TREES, "tree": 8}}, jobs)
    assert trees["churn"]["outputs"] == run_jobs(engine, jobs)["churn"]["outputs"]
    assert trees["stats"]["num_trees"] > 20


def test_a_seed_decides_the_output_also_where_its_prompt_is_read_in_chunks(tmp_path: Path) -> None:
    # Plain vLLM 0.32 fails here on CPUs.
    tiny_llama(tmp_path, VOCAB)
    prompts = [[(7 * k + row) % VOCAB for k in range(30)] for row in range(4)]
    params = {"temperature": 1.0, "seed": 7, "max_tokens": 12, "ignore_eos": True, "detokenize": False}
    engine = {"model": str(tmp_path), "skip_tokenizer_init": True, "max_model_len": 64, "max_num_seqs": 8}
    in_chunks, whole = (
        run_jobs(
            {**engine, "max_num_batched_tokens": size, "speculative_config": {"method": "treespec", "tree": tree}},
            {"sampled": {"prompts": prompts, "params": params}},
        )
        for size, tree in ((16, 8), (256, 3))
    )
    assert in_chunks["sampled"] == whole["sampled"]


TWO_ENGINES = """
import json, sys
from vllm import LLM, SamplingParams
engine = json.loads(sys.argv[1])
params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)
prompts = [{"prompt_token_ids": [number, 2, 3]} for number in range(1, 9)]
def tokens(llm): return [list(out.outputs[0].token_ids) for out in llm.generate(prompts, params, use_tqdm=False)]
plain = LLM(**engine)
trees = LLM(**engine, speculative_config={"method": "treespec", "tree": 12})
print("identical", tokens(plain) == tokens(trees) == tokens(plain), trees.collective_rpc("tree_stats")[0]["num_trees"])
"""


def test_an_engine_with_trees_and_a_plain_one_in_one_process(tmp_path: Path) -> None:
    tiny_llama(tmp_path, VOCAB)
    engine = {**SMALL, "model": str(tmp_path), "skip_tokenizer_init": True, "max_model_len": 64, "max_num_seqs": 4}
    command = [sys.executable, "-c", TWO_ENGINES, json.dumps(engine)]
    out = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, timeout=200, capture_output=True, text=True)
    *_, word, is_identical, num_trees = out.stdout.split() or ["", "", "0"]
    assert (word, is_identical) == ("identical", "True"), out.stderr[-3000:]
    assert int(num_trees) > 0
