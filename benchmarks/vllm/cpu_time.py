"""CPU time per token in vLLM: plain, lookups, and a head with lookups, by the number of requests at once.

    python -m benchmarks.vllm.cpu_time --concurrency 1 4 8 16 --batches 5
    python -m benchmarks.vllm.cpu_time --temperature 1 --top-p 0.9 --out sampled.json

Unlike wall time, CPU time hardly depends on what else the machine does; the control reads the wall clock, as in use:
keep a core free. All engines live in one process and take turns, batch by batch; the ratios are of the same batch.
Held-out prompts of HumanEval and GSM8K, or Spec-Bench's questions alone; greedy outputs are compared. Answers have half
to one and a half times the given number of tokens.
"""

import argparse
import importlib
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.prompts import DEMO, QUESTIONS, by_turns, held_out, questions
from benchmarks.common.settings import RESULTS, load_average, markdown_table, publish, settings
from benchmarks.vllm import ENVIRONMENT, MODEL, NAME, answer_lengths

COUNTS = ("num_steps", "num_draft_tokens", "num_accepted_tokens", "num_cut")
ENGINES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "lookups": {"method": "treespec", "warm_start": NAME},
    "head and lookups": {"method": "treespec", "warm_start": NAME, "head": NAME},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--spec-bench", **QUESTIONS)
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm" / "cpu_time.json")
    args = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        command = [sys.executable, "-m", "benchmarks.vllm.cpu_time", *sys.argv[1:]]
        raise SystemExit(subprocess.call(command, env={**os.environ, **ENVIRONMENT}))
    rows = [row for concurrency in args.concurrency for row in compare(concurrency, args)]
    sampling = {"temperature": args.temperature, "top_p": args.top_p}
    data = settings(batches=args.batches, tokens=args.tokens, **sampling, load=load_average(), rows=rows)
    publish(args.out, data, report(data))


def compare(concurrency: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every engine's CPU milliseconds per token, and times plain's speed, by batch."""
    engines = {name: Engine(ENGINES[name], concurrency, args) for name in args.engines}
    ms: dict[str, list[float]] = {name: [] for name in engines}
    outputs: dict[str, list[list[int]]] = {name: [] for name in engines}
    for number, batch in enumerate(batches(concurrency, args.batches, args.spec_bench)):
        names, first = list(engines), number % len(engines)
        for name in names[first:] + names[:first]:
            found, spent = engines[name].run(batch)
            outputs[name] += found
            ms[name].append(spent)
    rows = []
    for name, engine in engines.items():
        ratios = [plain / own for plain, own in zip(ms["plain"], ms[name], strict=True)]
        pairs = zip(outputs["plain"], outputs[name], strict=True)
        identical = None if args.temperature else sum(one == other for one, other in pairs)
        row = {"concurrency": concurrency, "engine": name, "ms": ms[name], "times_plain": ratios}
        row |= {"identical": identical, "requests": len(outputs[name]), **engine.stats()}
        rows.append(row)
        print(row, flush=True)
    return rows


def batches(concurrency: int, number: int, paths: list[Path]) -> list[list[Any]]:
    """Three times as many requests as run at once, so that they come and go."""
    size = 3 * concurrency if concurrency > 1 else 4
    prompts = by_turns(group for path in paths for group in questions(path).values()) or held_out((), size * number)
    chats = [[{"role": "user", "content": prompt.text}] for prompt in prompts[: size * number]]
    return [chats[start : start + size] for start in range(0, len(chats), size)]


class Engine:
    """One vLLM in this process."""

    def __init__(self, speculation: dict[str, Any] | None, concurrency: int, args: argparse.Namespace) -> None:
        vllm: Any = importlib.import_module("vllm")
        self.has_trees = speculation is not None
        self.llm = vllm.LLM(
            str(MODEL), dtype="float32", enforce_eager=True, max_model_len=4096, max_num_seqs=concurrency, seed=0,
            kv_cache_memory_bytes=1 << 28, block_size=32, disable_log_stats=False, enable_prefix_caching=False,
            speculative_config=speculation and dict(speculation),
        )  # fmt: skip
        sampling = {"temperature": args.temperature, "top_p": args.top_p, "ignore_eos": True}
        self.tokens, self.params = args.tokens, partial(vllm.SamplingParams, **sampling)
        self.run([[{"role": "user", "content": prompt.text}] for prompt in DEMO[:2]])
        self._warm_up = self._counts()

    def run(self, chats: list[Any]) -> tuple[list[list[int]], float]:
        """Tokens of all requests, and CPU milliseconds per token."""
        params = [self.params(max_tokens=length) for length in answer_lengths(len(chats), self.tokens)]
        began = time.process_time()
        found = [list(one.outputs[0].token_ids) for one in self.llm.chat(chats, params, use_tqdm=False)]
        return found, 1e3 * (time.process_time() - began) / sum(map(len, found))

    def _counts(self) -> dict[str, float]:
        found = self.llm.collective_rpc("tree_stats")[0] if self.has_trees else {}
        return {name: found[name] for name in COUNTS if name in found}

    def stats(self) -> dict[str, float]:
        """treespec's counts since the warm-up, and the draft tokens of a step, all requests together."""
        found = {name: count - self._warm_up[name] for name, count in self._counts().items()}
        return found and {**found, "draft_tokens_per_step": found["num_draft_tokens"] / found["num_steps"]}


def report(data: dict[str, Any]) -> str:
    """Markdown."""
    cells = []
    for row in data["rows"]:
        ratios = row["times_plain"]
        identical = "sampled" if row["identical"] is None else f"{row['identical']} of {row['requests']}"
        numbers = [f"{median(row['ms']):.1f}", f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"]
        drafted = f"{row['draft_tokens_per_step']:.2f}" if "draft_tokens_per_step" in row else ""
        cells.append([str(row["concurrency"]), row["engine"], *numbers, drafted, identical])
    header = ["concurrent", "engine", "CPU ms per token", "times plain", "over batches", "drafted per step"]
    return "# CPU time in vLLM\n\n" + markdown_table([*header, "identical"], cells)


if __name__ == "__main__":
    main()
