"""Requests with random arrivals, lengths, aborts and preemptions: nothing leaks, nothing differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.engines.churn import TREES, VOCAB, compared
from helpers.engines.engine import ENVIRONMENT, SMALL, run_jobs
from helpers.engines.models import tiny_gemma3, tiny_gpt_oss, tiny_llama

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

NUM_REQUESTS = int(os.environ.get("TREESPEC_VLLM_REQUESTS", "120"))


def test_requests_come_and_go(tmp_path: Path) -> None:
    tiny_llama(tmp_path, VOCAB)
    found = compared(str(tmp_path), TREES, NUM_REQUESTS, seed=0, has_aborts=True)
    stats, metrics = found["stats"], found["metrics"]
    assert found["aborted"] > NUM_REQUESTS / 20
    assert stats["num_trees"] > NUM_REQUESTS / 10
    assert stats["num_cut"] > 0
    # Cut before they are drafts: nothing is computed in vain.
    assert metrics["vllm:spec_decode_num_draft_tokens"] == stats["num_draft_tokens"]


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


@pytest.mark.parametrize(
    ("make", "settings", "has_trees"),
    [
        (tiny_gemma3, {}, True),
        (tiny_gpt_oss, {}, True),
        (tiny_gemma3, {"disable_hybrid_kv_cache_manager": False}, False),
        (tiny_llama, {"enforce_eager": False}, True),
    ],
    ids=["windows", "windows and experts", "several groups of caches", "a compiled model"],
)
def test_other_models_and_caches(tmp_path: Path, make: Any, settings: dict[str, Any], has_trees: bool) -> None:
    """Layers with and without a window share their blocks; several groups of caches serve chains."""
    make(tmp_path, VOCAB)
    stats = compared(str(tmp_path), TREES, 60, seed=2, blocks=(40, 60), **settings)["stats"]
    assert (stats["num_trees"] > 10) is has_trees
    assert stats["num_accepted_tokens"] > 10


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
