"""Hundreds of requests with random arrivals, lengths, aborts and preemptions: nothing leaks, nothing differs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.vllm_churn import random_requests
from helpers.vllm_jobs import run_jobs
from helpers.vllm_models import tiny_llama

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

NUM_REQUESTS = int(os.environ.get("TREESPEC_VLLM_REQUESTS", "400"))
VOCAB = 40


def test_requests_come_and_go(tmp_path: Path) -> None:
    tiny_llama(tmp_path, VOCAB)
    requests = random_requests(NUM_REQUESTS, VOCAB)
    engine = {
        "model": str(tmp_path),
        "skip_tokenizer_init": True,
        "max_model_len": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": True,
    }
    speculation = {"method": "treespec", "tree": 8}
    plain = run_jobs({**engine, "num_gpu_blocks_override": 10}, {"churn": {"churn": requests, "has_aborts": False}})
    trees = run_jobs(
        {**engine, "num_gpu_blocks_override": 13, "speculative_config": speculation},
        {"churn": {"churn": requests, "has_aborts": True}},
    )
    found, expected = trees["churn"], plain["churn"]
    assert {name: value for name, value in found.items() if name != "outputs"} == {
        "blocks": 0, "requests": 0, "drafts": 0, "streams": 0
    }  # fmt: skip
    for request, one, other in zip(requests, found["outputs"], expected["outputs"], strict=True):
        assert one == other[: len(one)]
        assert request["abort_after"] is not None or len(one) == request["max_tokens"]
    assert trees["metrics"]["vllm:num_preemptions"] > 0
    assert trees["stats"]["num_trees"] > NUM_REQUESTS / 10


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
    jobs = {"greedy": {"prompts": [[1, 2, 3], [4, 5, 4, 5]], "params": params}}
    found = run_jobs(engine, jobs, more={"VLLM_PLUGINS": ""})
    plain = run_jobs({name: engine[name] for name in list(engine)[:4]}, jobs)
    assert found["greedy"] == plain["greedy"]
    assert found["stats"]["num_draft_tokens"] > 0
