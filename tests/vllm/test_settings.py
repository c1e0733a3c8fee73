"""Greedy outputs with trees are plain vLLM's under the settings of deployments, several of them at once.

Plain outputs depend on few of these settings: engines that share those also share one plain engine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.engines.churn import VOCAB
from helpers.engines.engine import run_jobs
from helpers.engines.models import tiny_llama

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

ENGINE = {"skip_tokenizer_init": True, "max_model_len": 128, "max_num_seqs": 8, "max_logprobs": -1}
GREEDY = {"temperature": 0, "max_tokens": 20, "ignore_eos": True, "detokenize": False}
KINDS: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 0.6},
    {"frequency_penalty": 0.3, "repetition_penalty": 1.2},
    {"allowed_token_ids": list(range(0, VOCAB, 3))},
    {"logit_bias": {"7": 2.0, "11": -5.0}},
    {"stop_token_ids": list(range(0, VOCAB, 7))},
    {"stop_token_ids": list(range(0, VOCAB, 7)), "min_tokens": 9},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 0.7, "min_p": 1.0},
    {"logprobs": 0},
    {"logprobs": 3, "prompt_logprobs": 1},
    {"logprobs": 2, "presence_penalty": 0.6, "logit_bias": {"7": 2.0}},
    {"logprobs": -1, "max_tokens": 4},
    {"max_tokens": 1},
    {"max_tokens": 1000},  # To the end of the context.
    {"n": 2, "temperature": 1.0, "top_k": 1},
    {"temperature": 1.0},
]
"""All are in one batch; the output of the last one is random, and not compared."""
OUTPUT = ("kv_cache_dtype", "logprobs_mode")
"""Settings that plain outputs depend on."""
SETTINGS: dict[str, dict[str, Any]] = {
    "an fp8 cache, large blocks, few of them, chunks, raw logits": {
        "kv_cache_dtype": "fp8", "block_size": 128, "num_gpu_blocks_override": 9, "max_num_batched_tokens": 24,
        "logprobs_mode": "raw_logits", "speculative_config": {"tree": 5, "drafter": "recycling"},
    },
    "no prefix cache, larger blocks, few seats, long prompts wait, raw logits": {
        "block_size": 64, "enable_prefix_caching": False, "max_num_batched_tokens": 40, "max_num_seqs": 3,
        "long_prefill_token_threshold": 7, "logprobs_mode": "raw_logits", "speculative_config": {"tree": "auto"},
    },
    "large blocks, one seat per request, blocks kept free, tokens in fours": {
        "block_size": 128, "max_num_seqs": 32, "watermark": 0.1, "stream_interval": 4,
        "scheduler_reserve_full_isl": False, "prefix_caching_hash_algo": "sha256_cbor",
        "speculative_config": {"tree": 16},
    },
    "no chunks, few blocks, embeddings allowed, fixed shape": {
        "enable_chunked_prefill": False, "max_num_batched_tokens": 128, "num_gpu_blocks_override": 24,
        "enable_prompt_embeds": True, "use_fp64_gumbel": True, "disable_cascade_attn": True,
        "speculative_config": {"tree": [(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder, VOCAB)
    return str(folder)


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    """Prompts that begin alike, one of every kind; then in another order, when their prefixes are cached."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, VOCAB, 40).tolist()
    prompts = [[*shared[: 5 * (row % 9)], *rng.integers(0, VOCAB, 3 + row).tolist()] for row in range(len(KINDS))]
    again = [*rng.permutation(len(KINDS) - 1).tolist(), len(KINDS) - 1]
    return {
        name: {"prompts": [prompts[row] for row in rows], "params": [{**GREEDY, **KINDS[row]} for row in rows]}
        for name, rows in (("first", range(len(KINDS))), ("again", again))
    }


@pytest.fixture(scope="module")
def plain(model: str, jobs: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Plain vLLM's results by the settings that they depend on, given as pairs; each engine runs once."""
    return functools.cache(lambda *pairs: run_jobs({**ENGINE, **dict(pairs), "model": model}, jobs))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_kind_of_request_in_one_batch(
    model: str, jobs: dict[str, Any], plain: Callable[..., dict[str, Any]], name: str
) -> None:
    settings = SETTINGS[name]
    speculation = {"method": "treespec", **settings["speculative_config"]}
    trees = run_jobs({**ENGINE, **settings, "model": model, "speculative_config": speculation}, jobs)
    expected = plain(*((one, settings[one]) for one in OUTPUT if one in settings))
    for job in jobs:
        assert trees[job][:-1] == expected[job][:-1]
    assert trees["stats"]["num_accepted_tokens"] > 10
