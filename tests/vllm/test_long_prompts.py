"""Prompts of a thousand tokens and more, of requests with priorities, in a cache that is too small for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.engines.churn import TREES, VOCAB
from helpers.engines.engine import run_jobs
from helpers.engines.models import tiny_llama

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

LENGTHS = (1000, 1023, 1025, 7, 1180)
MOST, NUM_BLOCKS, NUM_SCRATCH = 1280, 72, 24
"""The last three prompts take all blocks but one, the first, that vLLM gives to nobody: when they grow, one waits."""
PARAMS = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "detokenize": False}


def test_long_prompts_and_priorities_give_plain_vllms_tokens(tmp_path: Path) -> None:
    """All requests at once, the most urgent ones last; then again, with cached prefixes and other priorities."""
    rng, number = np.random.default_rng(0), len(LENGTHS)
    common = {"prompts": [rng.integers(0, VOCAB, length).tolist() for length in LENGTHS], "params": PARAMS}
    jobs = {
        "late ones first": {**common, "priorities": list(range(number))[::-1]},
        "in groups": {**common, "priorities": [row % 3 for row in range(number)]},
    }
    tiny_llama(tmp_path, VOCAB)
    engine = {
        "model": str(tmp_path),
        "hf_overrides": {"max_position_embeddings": MOST},
        "skip_tokenizer_init": True,
        "max_model_len": MOST,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 192,
        "scheduling_policy": "priority",
    }
    plain = run_jobs({**engine, "num_gpu_blocks_override": NUM_BLOCKS}, jobs)
    trees = run_jobs({**engine, "num_gpu_blocks_override": NUM_BLOCKS + NUM_SCRATCH, "speculative_config": TREES}, jobs)
    assert {name: trees[name] for name in jobs} == {name: plain[name] for name in jobs}
    assert trees["metrics"]["vllm:num_preemptions"] > 0
    assert trees["stats"]["num_trees"] > 30
    assert trees["stats"]["num_accepted_tokens"] > 30
