"""Runs a list of jobs in one vLLM engine, in a process of its own: two engines do not share one.

The processes are children of one that has imported vLLM.

A job is prompts (texts or token ids), sampling parameters (one mapping, or one per prompt) and, under LoRA, each
prompt's adapter (a folder, or None), or its priority; or requests for `churn`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
NEXT_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}
IMPORTED = ("vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner")
"""Modules of a small engine that its parent process imports before the fork."""
OWN_METHODS = ("ngram",)
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
    *,
    seconds: float = 1200,
    more: Mapping[str, str] | None = None,
    planted: str | None = None,
    is_next: bool = False,
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
        is_next: in vLLM's V2 runner, whose kernels Triton's interpreter runs.

    Raises `RuntimeError`: the engine failed; the end of what it wrote. Without vLLM the test is skipped.
    """
    pytest.importorskip("vllm.config")
    with tempfile.TemporaryDirectory() as folder:
        asked, answered, errors = (Path(folder) / name for name in ("asked.json", "answers.json", "errors"))
        asked.write_text(json.dumps({"engine": {**SMALL, **engine}, "jobs": jobs, "planted": planted}))
        parent = _parent(is_next)
        assert parent.stdin is not None
        assert parent.stdout is not None
        print(json.dumps([str(asked), str(answered), str(errors), dict(more or {})]), file=parent.stdin, flush=True)
        timer = threading.Timer(seconds, os.killpg, (int(parent.stdout.readline()), signal.SIGKILL))
        timer.start()
        status = int(parent.stdout.readline())
        timer.cancel()
        if status != 0:
            raise RuntimeError(
                errors.read_text()[-6000:] or f"the engine was killed, after {seconds} seconds or before"
            )
        return json.loads(answered.read_text())


@functools.cache
def _parent(is_next: bool) -> subprocess.Popen[str]:
    """The process that has imported vLLM, which takes several times as long as the start of a small engine."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "examples")))
    return subprocess.Popen(
        [sys.executable, "-c", "from helpers.engines.engine import serve_all; serve_all()"],
        env={**os.environ, **ENVIRONMENT, **(NEXT_RUNNER if is_next else {}), "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def serve_all() -> None:
    """The parent of all engines: one child per line of its input, whose process id and status it prints."""
    if "TRITON_INTERPRET" in os.environ:  # vLLM for CPUs looks for a compiler for CPUs, which Triton's wheel lacks.
        backends = importlib.import_module("triton.backends").backends
        backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    for module in IMPORTED:  # None of them starts a thread, which a child would lack.
        importlib.import_module(module)
    for line in sys.stdin:
        asked, answered, errors, more = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.environ.update(more)
            with open(errors, "w") as file, open(os.devnull) as nothing:
                for stream, standard in ((nothing, 0), (file, 1), (file, 2)):
                    os.dup2(stream.fileno(), standard)
                os._exit(_serve(Path(asked), Path(answered)))
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


def _serve(asked: Path, answered: Path) -> int:
    """One engine; 1 where it failed, with the traceback on stderr."""
    try:
        answered.write_text(json.dumps(_answers(**json.loads(asked.read_text()))))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _answers(engine: Mapping[str, Any], jobs: Mapping[str, Any], planted: str | None) -> dict[str, Any]:
    if planted:
        from helpers.engines.planted_bugs import plant

        plant(planted)
    vllm: Any = importlib.import_module("vllm")
    answers: dict[str, Any] = {"counts": {}}
    llm, before = vllm.LLM(**engine), {}
    for name, job in jobs.items():
        answers[name] = _run(llm, job)
        answers["metrics"] = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
        if has_trees(engine):
            answers["stats"], *answers["other ranks"] = llm.collective_rpc("tree_stats")
        counts = {**answers["metrics"], **answers.get("stats", {})}
        answers["counts"][name] = {count: value - before.get(count, 0) for count, value in counts.items()}
        before = counts
    llm.llm_engine.engine_core.shutdown()
    return answers


def has_trees(engine: Mapping[str, Any]) -> bool:
    """Whether the engine is not plain vLLM, nor one with vLLM's own drafts."""
    method = engine.get("speculative_config", {}).get("method")
    return "speculative_config" in engine and (method not in OWN_METHODS or "worker_cls" in engine)


def _run(llm: Any, job: Mapping[str, Any]) -> Any:
    if "churn" in job:
        from helpers.engines.churn import churn

        return churn(llm, job["churn"], job["has_aborts"])
    prompts = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in job["prompts"]]
    given = job["params"]
    params = _as_params(given) if isinstance(given, dict) else [_as_params(one) for one in given]
    adapters = _as_adapters(job["adapters"]) if "adapters" in job else None
    requests = llm.generate(prompts, params, use_tqdm=False, lora_request=adapters, priority=job.get("priorities"))
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
