"""Requests with random arrivals, lengths, aborts and preemptions: nothing leaks, nothing differs.

`python -m benchmarks.vllm.churn` runs 2,000.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.vllm.churn import VOCAB, run_part
from benchmarks.vllm.engine import run_jobs
from benchmarks.vllm.models import tiny_llama

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

NUM_REQUESTS = int(os.environ.get("TREESPEC_VLLM_REQUESTS", "120"))


def test_requests_come_and_go(tmp_path: Path) -> None:
    found = run_part(tmp_path, NUM_REQUESTS, seed=0)
    assert found["left"] == {"blocks": 0, "requests": 0, "drafts": 0, "streams": 0}
    assert found["identical"] == NUM_REQUESTS
    assert found["preemptions"] > 0
    assert found["aborted"] > NUM_REQUESTS / 20
    assert found["trees"] > NUM_REQUESTS / 10


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
