"""Do requests that come and go leave anything behind, and is every output that of plain vLLM?

Requests of a tiny random model arrive at random, with random lengths and prefixes that some of them share; one in
five is aborted within six steps, and the cache is so small that requests are preempted. All outputs are compared with
those of plain vLLM, where nothing is aborted; an aborted request's output must be a beginning. In the end no block of
the cache, no request or draft may be left.
"""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

from helpers.engines.engine import run_jobs
from helpers.engines.models import tiny_llama

VOCAB = 40
ENGINE = {
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "enable_prefix_caching": True,
}
TREES = {"method": "treespec", "tree": 8}
NUM_BLOCKS, NUM_SCRATCH = 10, 3


def run_part(folder: Path, number: int, seed: int) -> dict[str, Any]:
    """Some requests in plain vLLM and with trees: how many are the same, and what is left."""
    tiny_llama(folder, VOCAB)
    requests, answers = random_requests(number, VOCAB, seed), {}
    for method in ("plain", "trees"):
        engine = {**ENGINE, "model": str(folder), "num_gpu_blocks_override": NUM_BLOCKS}
        if method == "trees":
            engine |= {"speculative_config": TREES, "num_gpu_blocks_override": NUM_BLOCKS + NUM_SCRATCH}
        jobs = {"churn": {"churn": requests, "has_aborts": method == "trees"}}
        answers[method] = run_jobs(engine, jobs)
    found, expected = dict(answers["trees"]["churn"]), answers["plain"]["churn"]
    pairs = list(zip(requests, found.pop("outputs"), expected["outputs"], strict=True))
    return {
        "aborted": sum(len(one) < request["max_tokens"] for request, one, _ in pairs),
        "identical": sum(is_right(*pair) for pair in pairs),
        "preemptions": int(answers["trees"]["metrics"]["vllm:num_preemptions"]),
        "trees": int(answers["trees"]["stats"]["num_trees"]),
        "cut": int(answers["trees"]["stats"]["num_cut"]),
        "drafted": int(answers["trees"]["metrics"]["vllm:spec_decode_num_draft_tokens"]),
        "verified": int(answers["trees"]["stats"]["num_draft_tokens"]),
        "left": found,
    }


def is_right(request: dict[str, Any], found: list[int], expected: list[int]) -> bool:
    """Whether the output is plain vLLM's, or a beginning of it where the request was aborted."""
    is_whole = len(found) == request["max_tokens"]
    return found == expected[: len(found)] and (is_whole or request["abort_after"] is not None)


def random_requests(number: int, vocab: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts and parameters; `abort_after`: steps after its arrival, or None; `arrives`: at which step."""
    rng, requests, step = random.Random(seed), [], 0
    shared = [rng.randrange(vocab) for _ in range(40)]  # Prefixes that are cached.
    for _ in range(number):
        step += rng.choice([0, 0, 0, 1, 2])
        length = rng.randrange(1, 40)
        prompt = shared[:length] if rng.random() < 0.3 else [rng.randrange(vocab) for _ in range(length)]
        requests.append(
            {
                "prompt": prompt,
                "max_tokens": rng.randrange(1, 24),
                "presence_penalty": rng.choice([0.0, 0.0, 0.5]),
                "arrives": step,
                "abort_after": rng.randrange(0, 6) if rng.random() < 0.2 else None,
            }
        )
    return requests


def churn(llm: Any, requests: list[dict[str, Any]], has_aborts: bool) -> dict[str, Any]:
    """Every request's tokens, and what is left when all have gone."""
    vllm: Any = importlib.import_module("vllm")

    engine, outputs, left, aborts = llm.llm_engine, {}, list(enumerate(requests)), {}
    step = 0
    while left or engine.has_unfinished_requests():
        while left and left[0][1]["arrives"] <= step:
            number, request = left.pop(0)
            params = vllm.SamplingParams(
                temperature=0, max_tokens=request["max_tokens"], ignore_eos=True, detokenize=False,
                presence_penalty=request["presence_penalty"],
            )  # fmt: skip
            engine.add_request(str(number), {"prompt_token_ids": request["prompt"]}, params)
            if has_aborts and request["abort_after"] is not None:
                aborts[str(number)] = step + request["abort_after"]
        leaving = [name for name, when in aborts.items() if when <= step]
        engine.abort_request(leaving)
        aborts = {name: when for name, when in aborts.items() if name not in leaving}
        for answer in engine.step():
            outputs[answer.request_id.split("-")[0]] = list(answer.outputs[0].token_ids)
        step += 1
    return {"outputs": [outputs.get(str(number), []) for number in range(len(requests))], **_left(engine)}


def _left(engine: Any) -> dict[str, Any]:
    core = engine.engine_core.engine_core
    pool, runner = core.scheduler.kv_cache_manager.block_pool, core.model_executor.driver_worker.worker.model_runner
    engine.step()
    requests = runner.requests if hasattr(runner, "requests") else runner.req_states.req_id_to_index
    found = {"blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(), "requests": len(requests)}
    if hasattr(runner, "_drafts"):
        found["drafts"] = len([name for name in runner._drafts if name in requests])
    return found
