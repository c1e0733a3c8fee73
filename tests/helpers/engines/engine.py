"""Runs a list of jobs in one vLLM engine, in a process of its own: two engines do not share one.

A job is prompts (texts or token ids), sampling parameters (one mapping, or one per prompt) and, under LoRA, each
prompt's adapter (a folder, or None); or requests for `churn`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.vllm import ENVIRONMENT, MODEL

__all__ = ["ENVIRONMENT", "MODEL", "PROMPTS", "SMALL", "run_jobs"]
ROOT = Path(__file__).parents[3]
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


DONE = "done: "


def run_jobs(
    engine: Mapping[str, Any],
    jobs: Mapping[str, Mapping[str, Any]],
    *,
    seconds: float = 1200,
    more: Mapping[str, str] | None = None,
    planted: str | None = None,
    kept: Path | None = None,
    on_done: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """By job the requests' results; under "stats" and "metrics" treespec's and vLLM's counts, by job in "counts".

    "stats" are those of the first rank, "other ranks" a list of the others'.

    A result is a mapping of ids, reason, and, where they were asked for, logprobs and prompt_logprobs.

    Args:
        engine: arguments of `vllm.LLM`, added to `SMALL`.
        jobs: see above, by name.
        seconds: after so many the engine is killed.
        more: variables of the environment.
        planted: the name of one of the `planted_bugs` that the engine runs with.
        kept: a file of answers: jobs that are in it are not run again, and it is written after every job.
        on_done: gets the name of every job that is done.

    Raises `RuntimeError`: the engine failed; the end of what it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answered, errors = Path(folder) / "asked.json", kept or Path(folder) / "answers.json", Path(folder) / "e"
        asked.write_text(json.dumps({"engine": {**SMALL, **engine}, "jobs": jobs, "planted": planted}))
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, **(more or {})}
        command = [sys.executable, "-c", "from helpers.engines.engine import serve; serve()", str(asked), str(answered)]
        with errors.open("w") as file:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True)
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(DONE):
                    on_done(line.removeprefix(DONE).strip())
            timer.cancel()
        if process.wait() != 0:
            raise RuntimeError(
                errors.read_text()[-6000:] or f"the engine was killed, after {seconds} seconds or before"
            )
        return json.loads(answered.read_text())


def serve() -> None:
    """The process of `run_jobs`."""
    asked, answered = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    if asked["planted"]:
        from helpers.engines.planted_bugs import plant

        plant(asked["planted"])
    answers = json.loads(answered.read_text()) if answered.exists() else {"counts": {}}
    left = {name: job for name, job in asked["jobs"].items() if name not in answers}
    if not left:
        return
    vllm: Any = importlib.import_module("vllm")
    llm = vllm.LLM(**asked["engine"])
    before: dict[str, float] = {}
    for name, job in left.items():
        answers[name] = _run(llm, job)
        answers["metrics"] = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
        if "speculative_config" in asked["engine"]:
            answers["stats"], *answers["other ranks"] = llm.collective_rpc("tree_stats")
        counts = {**answers["metrics"], **answers.get("stats", {})}
        answers["counts"][name] = {count: value - before.get(count, 0) for count, value in counts.items()}
        before = counts
        scratch = answered.with_suffix(".partial")
        scratch.write_text(json.dumps(answers))
        scratch.replace(answered)
        print(DONE + name, flush=True)


def _run(llm: Any, job: Mapping[str, Any]) -> Any:
    if "churn" in job:
        from helpers.engines.churn import churn

        return churn(llm, job["churn"], job["has_aborts"])
    prompts = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in job["prompts"]]
    given = job["params"]
    params = _as_params(given) if isinstance(given, dict) else [_as_params(one) for one in given]
    adapters = _as_adapters(job["adapters"]) if "adapters" in job else None
    requests = llm.generate(prompts, params, use_tqdm=False, lora_request=adapters)
    return [_result(request, output) for request in requests for output in request.outputs]


def _as_params(values: Mapping[str, Any]) -> Any:
    module: Any = importlib.import_module("vllm.sampling_params")
    values = dict(values)
    if "regex" in values:
        values["structured_outputs"] = module.StructuredOutputsParams(regex=values.pop("regex"))
    if "logit_bias" in values:  # Keys were strings in the file.
        values["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}
    return module.SamplingParams(**values)


def _as_adapters(folders: Sequence[str | None]) -> list[Any]:
    module: Any = importlib.import_module("vllm.lora.request")
    return [folder and module.LoRARequest(folder, 1 + zlib.crc32(folder.encode()), folder) for folder in folders]


def _result(request: Any, output: Any) -> dict[str, Any]:
    def rounded(positions: Sequence[Any]) -> list[list[Any]]:
        return [[[token, round(one.logprob, 3)] for token, one in sorted(d.items())] for d in positions if d]

    found = {"ids": list(output.token_ids), "reason": output.finish_reason}
    if output.logprobs:
        found["logprobs"] = rounded(output.logprobs)
    if request.prompt_logprobs:
        found["prompt_logprobs"] = rounded(request.prompt_logprobs)
    return found
