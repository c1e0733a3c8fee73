"""Do requests that come and go leave anything behind, and is every output that of plain vLLM?

Requests of a tiny random model arrive at random, with random lengths and prefixes that some of them share; where there
are aborts, one in five is aborted within six steps. The cache may be so small that requests are preempted. All outputs
are compared with those of plain vLLM; an aborted request's output must be a beginning. In the end no block of the
cache, no request or draft may be left.
"""

from __future__ import annotations

import functools
import importlib
import json
import random
from typing import Any

from helpers.engines.engine import run_jobs

VOCAB = 40
ENGINE = {
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "enable_prefix_caching": True,
}
TREES = {"method": "treespec", "tree": 8}


def compared(
    model: str, speculation: dict[str, Any], number: int = 150, seed: int = 1, has_aborts: bool = False,
    blocks: tuple[int, int] = (10, 13), **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Answers of an engine with trees whose outputs are plain vLLM's, and in which requests left nothing behind.

    `blocks`: of plain vLLM's cache, and of the cache of trees, with their scratch blocks. `settings`: of both engines.
    """
    requests = random_requests(number, VOCAB, seed)
    expected = _plain(model, blocks[0], number, seed, json.dumps(settings))
    engine = {**ENGINE, **settings, "model": model, "num_gpu_blocks_override": blocks[1]}
    jobs = {"churn": {"churn": requests, "has_aborts": has_aborts}}
    found = run_jobs({**engine, "speculative_config": speculation}, jobs)
    outputs = found["churn"].pop("outputs")
    assert all(map(is_right, requests, outputs, expected))
    assert found["churn"] == {"blocks": 0, "requests": 0, "drafts": 0}
    assert found["metrics"]["vllm:num_preemptions"] > 0 or blocks[0] > 10
    return {**found, "aborted": sum(len(one) < r["max_tokens"] for r, one in zip(requests, outputs, strict=True))}


@functools.cache
def _plain(model: str, num_blocks: int, number: int, seed: int, settings: str) -> list[list[int]]:
    """Plain vLLM's outputs."""
    engine = {**ENGINE, **json.loads(settings), "model": model, "num_gpu_blocks_override": num_blocks}
    jobs = {"churn": {"churn": random_requests(number, VOCAB, seed), "has_aborts": False}}
    return run_jobs(engine, jobs)["churn"]["outputs"]


def acceptance_length(model: str, speculation: dict[str, Any]) -> float:
    """Its mean for trees with a chain of three and a sibling, in an engine whose greedy outputs are plain vLLM's."""
    rng = random.Random(0)
    params = {"temperature": 0, "max_tokens": 41, "ignore_eos": True, "detokenize": False}
    prompts = [[rng.randrange(VOCAB) for _ in range(20)] for _ in range(12)]
    engine, jobs = {**ENGINE, "model": model}, {"greedy": {"prompts": prompts, "params": params}}
    trees = run_jobs({**engine, "speculative_config": {**speculation, "tree": [[0], [1], [0, 0], [0, 0, 0]]}}, jobs)
    assert trees["greedy"] == run_jobs(engine, jobs)["greedy"]
    return trees["stats"]["mean_acceptance_length"]


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
