"""vLLM's own `bench serve` for plain decoding, n-grams, suffixes and trees, by the number of requests at once.

    python -m benchmarks.vllm.serve --concurrency 1 4 8 16 --tokens 48

One server after the other; the CPU time of each is counted too, as it hardly depends on what else the machine does.
Greedy, held-out prompts of HumanEval and GSM8K, others for every number of requests. It needs pandas; the suffix method
is skipped without its package, see `benchmarks.vllm`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common.prompts import held_out
from benchmarks.common.settings import RESULTS, load_average, markdown_table, settings, settings_lines, write_json
from benchmarks.vllm import ENVIRONMENT, MODEL
from benchmarks.vllm.__main__ import METHODS, is_installed

NAMES = ("plain", "ngram", "suffix", "treespec head + warm")
STARTUP_SECONDS, WAVES = 900, 2
"""Requests per number of requests at once."""
SERVER = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(NAMES))
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm" / "serve.json")
    args = parser.parse_args()
    methods, rows = [name for name in args.methods if is_installed(name)], []
    for name in methods:
        prompts = [prompt.text for prompt in held_out(None, sum(map(num_requests, args.concurrency)))]
        with server(METHODS[name], max(args.concurrency)) as (port, process):
            for at_once in args.concurrency:
                chosen, prompts = prompts[: num_requests(at_once)], prompts[num_requests(at_once) :]
                found = bench(port, process, chosen, at_once, args.tokens)
                rows.append({"method": name, "concurrency": at_once, **found})
                print(rows[-1], flush=True)
    data = settings(tokens=args.tokens, load=load_average(), rows=rows)
    write_json(args.out, data)
    args.out.with_suffix(".md").write_text(report(data))
    print(report(data))


def num_requests(at_once: int) -> int:
    """How many requests a number of them at once is measured with."""
    return max(WAVES * at_once, 4)


@contextmanager
def server(speculation: dict[str, Any] | None, at_once: int) -> Iterator[tuple[int, psutil.Process]]:
    """The port and process of a server, which ends with the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", str(at_once),
        "--block-size", "32", "--kv-cache-memory-bytes", str(1 << 29), "--seed", "0",
        *(["--speculative-config", json.dumps(speculation)] if speculation else []),
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        env={**os.environ, **SERVER},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until_healthy(port, process)
        yield port, psutil.Process(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


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


def bench(port: int, process: psutil.Process, prompts: list[str], at_once: int, tokens: int) -> dict[str, float]:
    """What `bench serve` says of these prompts, and the server's CPU milliseconds per token."""
    serve: Any = importlib.import_module("vllm.benchmarks.serve")
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    serve.add_cli_args(parser)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
        file.flush()
        given = [
            "--port", str(port), "--model", str(MODEL), "--dataset-name", "custom", "--dataset-path", file.name,
            "--custom-output-len", str(tokens), "--num-prompts", str(len(prompts)), "--max-concurrency", str(at_once),
            "--ignore-eos", "--temperature", "0", "--disable-tqdm",
        ]  # fmt: skip
        before = cpu_seconds(process)
        found = serve.main(parser.parse_args(given))
    names = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "completed", "total_output_tokens")
    spent = 1e3 * (cpu_seconds(process) - before) / found["total_output_tokens"]
    return {**{name: found[name] for name in names}, "cpu_ms_per_token": spent}


def cpu_seconds(process: psutil.Process) -> float:
    """What a server's processes have used."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def report(data: dict[str, Any]) -> str:
    """Markdown."""
    plain = {row["concurrency"]: row for row in data["rows"] if row["method"] == "plain"}
    header = ["at once", "method", "tokens/s", "times plain", "ms per token", "CPU ms per token", "times plain (CPU)"]
    cells = []
    for row in sorted(data["rows"], key=lambda row: row["concurrency"]):
        base = plain[row["concurrency"]]
        speeds = row["output_throughput"], row["output_throughput"] / base["output_throughput"], row["median_tpot_ms"]
        cpu = row["cpu_ms_per_token"], base["cpu_ms_per_token"] / row["cpu_ms_per_token"]
        cells.append([str(row["concurrency"]), row["method"], *(f"{value:.2f}" for value in (*speeds, *cpu))])
    return "# `vllm bench serve`\n\n" + markdown_table(header, cells) + "\n" + settings_lines(data)


if __name__ == "__main__":
    main()
