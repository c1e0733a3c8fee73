"""vLLM's own `bench serve` for plain decoding, n-grams, suffixes and trees, by the number of requests at once.

    python -m benchmarks.vllm.serve --concurrency 1 4 8 16 --tokens 48 --rounds 3

One server after the other, methods in turn, on a quiet machine: vLLM's processes poll while they wait for each other,
so that CPU time would say as little as wall time. Greedy, held-out prompts of HumanEval and GSM8K, others for every
number of requests. Answers have half to one and a half times the given number of tokens. The suffix method is skipped
without its package, which takes cmake, a C++ compiler and the environment's `bin` in `PATH`:

    pip install nanobind==2.9.2 grpcio-tools
    pip install --no-deps --no-build-isolation arctic-inference==0.1.1
"""

import argparse
import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.prompts import held_out
from benchmarks.common.settings import RESULTS, load_average, markdown_table, publish, settings
from benchmarks.vllm import ENVIRONMENT, MODEL, NAME, answer_lengths

METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "treespec head + warm": {"method": "treespec", "num_speculative_tokens": 15, "head": NAME, "warm_start": NAME},
}
STARTUP_SECONDS, WAVES = 900, 2
"""Requests per number of requests at once."""
MEASURED = ("output_throughput", "median_tpot_ms", "median_ttft_ms", "completed", "total_output_tokens")
SERVER = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm" / "serve.json")
    args = parser.parse_args()
    without = set() if importlib.util.find_spec("arctic_inference") else {"suffix"}
    methods, rows = [name for name in args.methods if name not in without], []
    for name in methods * args.rounds:
        prompts = [prompt.text for prompt in held_out((), sum(map(num_requests, args.concurrency)))]
        with server(METHODS[name], max(args.concurrency)) as port:
            for at_once in args.concurrency:
                chosen, prompts = prompts[: num_requests(at_once)], prompts[num_requests(at_once) :]
                found = bench(port, chosen, at_once, args.tokens)
                rows.append({"method": name, "concurrency": at_once, **found})
                print(rows[-1], flush=True)
    data = settings(tokens=args.tokens, load=load_average(), rows=rows)
    publish(args.out, data, report(data))


def num_requests(at_once: int) -> int:
    """How many requests a number of them at once is measured with."""
    return max(WAVES * at_once, 4)


@contextmanager
def server(speculation: dict[str, Any] | None, at_once: int) -> Iterator[int]:
    """The port of a server for so many requests at once, which ends with the context."""
    given = ["--max-model-len", "1024", "--max-num-seqs", str(at_once), "--kv-cache-memory-bytes", str(1 << 29)]
    with running(given, speculation, log=subprocess.DEVNULL) as (port, _):
        yield port


@contextmanager
def running(
    given: list[str], speculation: dict[str, Any] | None, more: Mapping[str, str] | None = None, log: int | None = None
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port and the process of a server of `MODEL`; all its processes end with the context.

    `given`: arguments; `more`: variables of the environment; `log`: where it writes to, see `subprocess.Popen`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--block-size", "32", "--seed", "0", *given,
        *(["--speculative-config", json.dumps(speculation)] if speculation else []),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env={**os.environ, **SERVER, **(more or {})}, start_new_session=True, stdout=log, stderr=log
    )
    try:
        wait_until_healthy(port, process)
        yield port, process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    """Raises `RuntimeError`: the server has stopped, or does not answer."""
    end = time.monotonic() + STARTUP_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
            return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"no server: {process.args}")


def bench(port: int, prompts: list[str], at_once: int, tokens: int) -> dict[str, float]:
    """Metrics of `bench serve` for these prompts."""
    serve: Any = importlib.import_module("vllm.benchmarks.serve")
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    serve.add_cli_args(parser)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for prompt, length in zip(prompts, answer_lengths(len(prompts), tokens), strict=True):
            file.write(json.dumps({"prompt": prompt, "output_tokens": length}) + "\n")
        file.flush()
        given = [
            "--port", str(port), "--model", str(MODEL), "--dataset-name", "custom", "--dataset-path", file.name,
            "--custom-output-len", "-1", "--num-prompts", str(len(prompts)), "--max-concurrency", str(at_once),
            "--ignore-eos", "--temperature", "0", "--disable-tqdm",
        ]  # fmt: skip
        found = serve.main(parser.parse_args(given))
    return {name: float(found[name]) for name in MEASURED}


def report(data: dict[str, Any]) -> str:
    """Markdown: medians over the servers of a method."""
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for row in sorted(data["rows"], key=lambda row: row["concurrency"]):
        found.setdefault((row["concurrency"], row["method"]), []).append(row)
    cells = []
    for (at_once, method), rows in found.items():
        speed, ms, first = (median(row[name] for row in rows) for name in MEASURED[:3])
        times = [
            row[MEASURED[0]] / plain[MEASURED[0]] for row, plain in zip(rows, found[at_once, "plain"], strict=True)
        ]
        numbers = f"{speed:.1f}", ", ".join(f"{ratio:.2f}" for ratio in times), f"{ms:.1f}", f"{first:.0f}"
        cells.append([str(at_once), method, *numbers])
    header = ["at once", "method", "tokens per second", "times plain", "ms per token", "ms to the first"]
    return "# `vllm bench serve`\n\n" + markdown_table(header, cells)


if __name__ == "__main__":
    main()
