"""Requests that arrive at random, of random lengths, some of them aborted, in one vLLM engine; run by `vllm_jobs`."""

from __future__ import annotations

import random
from typing import Any


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
    from vllm import SamplingParams

    engine, outputs, left, aborts = llm.llm_engine, {}, list(enumerate(requests)), {}
    step = 0
    while left or engine.has_unfinished_requests():
        while left and left[0][1]["arrives"] <= step:
            number, request = left.pop(0)
            params = SamplingParams(
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
    found = {"blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(), "requests": len(runner.requests)}
    if hasattr(runner, "_drafts"):
        found["drafts"] = len([name for name in runner._drafts if name in runner.requests])
        found["streams"] = len(runner._verifier.streams._own)
    return found
