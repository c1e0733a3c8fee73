"""Runs a list of jobs in one vLLM engine, in a process of its own: two engines do not share one.

A job is prompts (texts or token ids) and sampling parameters (one mapping, or one per prompt), or requests for `churn`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODEL = Path.home() / ".cache" / "treespec" / "SmolLM2-135M-Instruct-float32"
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SMALL = {
    "dtype": "float32",
    "enforce_eager": True,
    "seed": 0,
    "block_size": 32,
    "kv_cache_memory_bytes": 1 << 28,
    "disable_log_stats": False,
}
"""Engine arguments of every test."""
PROMPTS = [
    "Count from one to ten in words, then from one to ten in words again.",
    "The tree stands by the river. The tree stands by the river. The tree",
    "Write a Python function that returns the sum of a list of numbers.",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    "List three fruits and their colours, one per line.",
    "Once upon a time there was a king who had three sons. The eldest son",
]


def run_jobs(
    engine: Mapping[str, Any],
    jobs: Mapping[str, Mapping[str, Any]],
    seconds: float = 280,
    more: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """By job the requests' results; under "stats" and "metrics" treespec's and vLLM's counts.

    A result is a mapping of ids, reason, and, where they were asked for, logprobs and prompt_logprobs. `more` are
    variables of the environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "asked.json", Path(folder) / "answered.json"
        asked.write_text(json.dumps({"engine": {**SMALL, **engine}, "jobs": jobs}))
        paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths), **(more or {})}
        command = [sys.executable, __file__, str(asked), str(answered)]
        done = subprocess.run(command, env=environment, timeout=seconds, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-6000:])
        return json.loads(answered.read_text())


def _serve(engine: dict[str, Any], jobs: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    def as_params(values: dict[str, Any]) -> SamplingParams:
        if "regex" in values:
            values = {**values, "structured_outputs": StructuredOutputsParams(regex=values["regex"])}
            del values["regex"]
        if "logit_bias" in values:  # Keys were strings in the file.
            values = {**values, "logit_bias": {int(token): bias for token, bias in values["logit_bias"].items()}}
        return SamplingParams(**values)

    llm = LLM(**engine)
    answers: dict[str, Any] = {}
    for name, job in jobs.items():
        if "churn" in job:
            from helpers.vllm_churn import churn

            answers[name] = churn(llm, job["churn"], job["has_aborts"])
            continue
        prompts = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in job["prompts"]]
        given = job["params"]
        params = as_params(given) if isinstance(given, dict) else [as_params(one) for one in given]
        requests = llm.generate(prompts, params, use_tqdm=False)
        answers[name] = [_result(request, output) for request in requests for output in request.outputs]
    if "speculative_config" in engine:
        answers["stats"] = llm.collective_rpc("tree_stats")[0]
    answers["metrics"] = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return answers


def _result(request: Any, output: Any) -> dict[str, Any]:
    def rounded(positions: Sequence[Any]) -> list[list[Any]]:
        return [[[token, round(one.logprob, 3)] for token, one in sorted(d.items())] for d in positions if d]

    found = {"ids": list(output.token_ids), "reason": output.finish_reason}
    if output.logprobs:
        found["logprobs"] = rounded(output.logprobs)
    if request.prompt_logprobs:
        found["prompt_logprobs"] = rounded(request.prompt_logprobs)
    return found


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(_serve(asked["engine"], asked["jobs"])))
