"""Milliseconds per token in vLLM: plain, its n-gram and suffix methods, treespec; by number of concurrent requests.

    python -m benchmarks.vllm --prompts 100 --tokens 64 --concurrency 1 4 16

Runs in an environment with vLLM for CPUs (`make bench-vllm`). Each method is an engine in a process of its own, one
after the other, greedy, on held-out prompts of HumanEval and GSM8K; a few other prompts warm the engine up. Outputs are
compared with plain vLLM's. vLLM's suffix method is skipped without its package, which takes cmake and a C++ compiler:

    pip install nanobind==2.9.2
    pip install --no-deps --no-build-isolation arctic-inference==0.1.1
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common.prompts import DEMO, held_out
from benchmarks.common.settings import RESULTS, load_average, markdown_table, settings, settings_lines, write_json
from benchmarks.vllm import ENVIRONMENT, MODEL

NAME = "SmolLM2-135M-Instruct"
METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "treespec": {"method": "treespec", "num_speculative_tokens": 15, "warm_start": NAME},
    "treespec head": {"method": "treespec", "num_speculative_tokens": 15, "drafter": "head", "head": NAME},
    "treespec head + warm": {"method": "treespec", "num_speculative_tokens": 15, "head": NAME, "warm_start": NAME},
    "treespec cold": {"method": "treespec", "num_speculative_tokens": 15},
    "treespec 16": {"method": "treespec", "tree": 16, "warm_start": NAME},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm" / "methods.json")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        method, path = args.run
        Path(path).write_text(json.dumps(serve(METHODS[method], args.prompts, args.tokens, args.concurrency)))
        return
    rows = [row for method in args.methods if is_installed(method) for row in run(method, args)]
    compare(rows)
    data = settings(prompts=args.prompts, tokens=args.tokens, rows=rows)
    write_json(args.out, data)
    args.out.with_suffix(".md").write_text(report(data))
    print(report(data))


def is_installed(method: str) -> bool:
    """Whether a method's own package is there."""
    if method != "suffix" or importlib.util.find_spec("arctic_inference"):
        return True
    print("suffix is skipped: it needs the package arctic-inference")
    return False


def run(method: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One engine for every number of concurrent requests."""
    rows = []
    for concurrency in args.concurrency:
        with tempfile.NamedTemporaryFile() as file:
            command = [sys.executable, "-m", "benchmarks.vllm", "--run", method, file.name]
            command += ["--prompts", str(args.prompts), "--tokens", str(args.tokens), "--concurrency", str(concurrency)]
            subprocess.run(command, check=True, env={**os.environ, **ENVIRONMENT}, stderr=subprocess.DEVNULL)
            rows.append({"method": method, **json.loads(Path(file.name).read_text())})
        shown = {name: value for name, value in rows[-1].items() if name != "outputs"}
        print(shown, flush=True)
    return rows


def serve(speculation: dict[str, Any] | None, num_prompts: int, tokens: int, concurrency: list[int]) -> dict[str, Any]:
    """Time per emitted token of all prompts together, reading them included."""
    vllm: Any = importlib.import_module("vllm")
    llm = vllm.LLM(
        str(MODEL), dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=concurrency[0], seed=0,
        kv_cache_memory_bytes=1 << 30, block_size=32, disable_log_stats=False, speculative_config=speculation,
    )  # fmt: skip

    def chats(prompts: Any) -> list[Any]:
        return [[{"role": "user", "content": prompt.text}] for prompt in prompts]

    params = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    llm.chat(chats(DEMO[:2]), vllm.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False)
    prompts, load, began = chats(held_out(None, num_prompts)), load_average(), time.perf_counter()
    outputs = [list(answer.outputs[0].token_ids) for answer in llm.chat(prompts, params, use_tqdm=False)]
    seconds = time.perf_counter() - began
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    drafts = found.get("vllm:spec_decode_num_drafts", 0)
    accepted = found.get("vllm:spec_decode_num_accepted_tokens", 0)
    return {
        "concurrency": concurrency[0],
        "ms_per_token": round(1e3 * seconds / sum(map(len, outputs)), 2),
        "acceptance_length": round(1 + accepted / drafts, 3) if drafts else 1.0,
        "load_average": load,
        "outputs": outputs,
    }


def compare(rows: list[dict[str, Any]]) -> None:
    """Replace outputs by how many are those of the first row, plain vLLM's one by one."""
    first = rows[0]["outputs"]
    for row in rows:
        row["identical"] = sum(one == other for one, other in zip(first, row["outputs"], strict=True))
    for row in rows:
        del row["outputs"]


def report(data: dict[str, Any]) -> str:
    """Markdown."""
    plain = {row["concurrency"]: row["ms_per_token"] for row in data["rows"] if row["method"] == "plain"}
    header = ["concurrent", "method", "ms per token", "times plain", "acceptance length", "identical", "load"]
    cells = []
    for row in sorted(data["rows"], key=lambda row: row["concurrency"]):
        speed = plain.get(row["concurrency"], float("nan")) / row["ms_per_token"]
        numbers = [f"{row['ms_per_token']:.1f}", f"{speed:.2f}", f"{row['acceptance_length']:.2f}"]
        identical = f"{row['identical']} of {data['prompts']}"
        cells.append([str(row["concurrency"]), row["method"], *numbers, identical, str(row["load_average"])])
    title = f"# Trees in vLLM\n\n{data['prompts']} held-out prompts, {data['tokens']} tokens each, greedy, float32.\n\n"
    return title + markdown_table(header, cells) + "\n" + settings_lines(data)


if __name__ == "__main__":
    main()
