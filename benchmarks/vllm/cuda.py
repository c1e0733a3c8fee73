"""Trees in vLLM on a CUDA device against plain vLLM: greedy tokens, a sampled distribution and, on request, times.

    python -m benchmarks.vllm.cuda --model FOLDER --at-once 5
    python -m benchmarks.vllm.cuda --model FOLDER --only "bf16 plain" "bf16 auto" --times

FOLDER has SmolLM2-135M-Instruct. Each engine is a process of its own, `--at-once` of them at a time. What it found, and
its log, stay under `--parts`, so that several calls make one report. `--times` needs engines one after the other; its
prompts, of HumanEval and GSM8K, are new to every engine. The others run in one batch, and again with a full prefix
cache.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.common.prompts import DEMO, held_out
from benchmarks.common.settings import RESULTS, markdown_table, settings, settings_lines, write_json
from benchmarks.vllm import ENVIRONMENT

NAME = "SmolLM2-135M-Instruct"
TREE = {"method": "treespec", "tree": 16, "head": NAME, "warm_start": NAME}
CHAIN = {**TREE, "tree": "[(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]"}
AUTO, LOOKUPS = {**TREE, "tree": "auto"}, {"method": "treespec", "tree": 12, "warm_start": NAME}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
EAGER, F32, BF16 = {"enforce_eager": True}, {"dtype": "float32"}, {"dtype": "bfloat16"}
TRITON, FLASH, FLEX = ({"attention_backend": name} for name in ("TRITON_ATTN", "FLASH_ATTN", "FLEX_ATTENTION"))


class Engine(NamedTuple):
    """vLLM's arguments, its speculation, and the engine without drafts whose tokens must be the same."""

    arguments: dict[str, Any]
    speculation: dict[str, Any] | None = None
    reference: str | None = None


ENGINES = {
    "f32 eager plain": Engine({**F32, **EAGER}),
    "f32 eager tree": Engine({**F32, **EAGER}, TREE, "f32 eager plain"),
    "f32 eager chain": Engine({**F32, **EAGER}, CHAIN, "f32 eager plain"),
    "f32 tree": Engine(F32, TREE, "f32 eager plain"),
    "f32 lookups": Engine(F32, LOOKUPS, "f32 eager plain"),
    "f32 auto": Engine(F32, AUTO, "f32 eager plain"),
    "bf16 eager plain": Engine({**BF16, **EAGER, **FLASH}),
    "bf16 eager tree": Engine({**BF16, **EAGER, **FLASH}, TREE, "bf16 eager plain"),
    "bf16 triton plain": Engine({**BF16, **TRITON}),
    "bf16 triton tree": Engine({**BF16, **TRITON}, TREE, "bf16 triton plain"),
    "bf16 flex tree": Engine({**BF16, **EAGER, **FLEX}, TREE),  # Is refused.
    "bf16 plain": Engine(BF16),
    "bf16 ngram": Engine(BF16, NGRAM, "bf16 plain"),
    "bf16 auto": Engine(BF16, AUTO, "bf16 plain"),
    "bf16 tree": Engine(BF16, TREE, "bf16 plain"),
    "bf16 chain": Engine(BF16, CHAIN, "bf16 plain"),
}
"""Without "eager" with the graphs that are the default: full ones for vLLM's own methods, piecewise ones for trees."""
SAMPLED = ("f32 eager plain", "f32 eager tree")
PROMPTS = (
    "Count from one to ten in words, then from one to ten in words again.",
    "Continue: The tree stands by the river. The tree stands by the river. The tree",
    "Write a Python function that returns the sum of a list of numbers.",
    "Continue this code:\ndef add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    "List three fruits and their colours, one per line.",
    "Once upon a time there was a king who had three sons. Write the story of the eldest.",
    "Explain photosynthesis to a child.",
    "What is the capital of France, and what is it known for?",
    "Translate to French: I would like a cup of tea and a piece of cake, please.",
    "A farmer has 12 cows and buys 7 more, then sells 5. How many has he? Think step by step.",
    "Write a short email that declines a meeting.",
    "Summarise: Water boils at 100 degrees at sea level. On mountains it boils at lower temperatures, since the "
    "pressure is lower. So food takes longer to cook there.",
    "Give five names for a cat.",
    "Write a SQL query that counts the orders of each customer.",
    "What are the steps of making bread?",
    "Repeat the word yes twenty times.",
)
TOKENS, NUM_SAMPLES, SAMPLED_TOKENS = 128, 2048, 4
TIMED = {1: 8, 4: 16, 16: 48}
"""Prompts by how many of them are run at once."""
FEWEST = 10
"""Sampled texts that came more seldom, in both engines together, are counted as one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--limit", type=float, default=300, help="seconds for an engine")
    parser.add_argument("--parts", type=Path, default=Path("vllm_cuda"))
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm" / "cuda.json")
    parser.add_argument("--run", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.times and args.at_once > 1:
        parser.error("--times needs --at-once 1: engines that run at once slow each other")
    if args.run:
        part(args, args.run).write_text(json.dumps(serve(args.run, args.model, args.times)))
        return
    args.parts.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(lambda name: start(name, args), args.only))
    parts = {name: json.loads(part(args, name).read_text()) for name in ENGINES if part(args, name).exists()}
    data = settings(
        vllm=importlib.metadata.version("vllm"), card=_card(), rows=rows_of(parts), sampled=sampling_test(parts)
    )
    write_json(args.out, data)
    args.out.with_suffix(".md").write_text(report(data))
    print(report(data))


def part(args: argparse.Namespace, name: str) -> Path:
    """The file of what an engine found."""
    return args.parts / f"{name}.json"


def start(name: str, args: argparse.Namespace) -> None:
    """One engine in a process of its own."""
    environment = {**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO"}
    if ENGINES[name].arguments["dtype"] == "float32":
        environment["TRITON_F32_DEFAULT"] = "ieee"  # In place of TF32.
    if name == "f32 eager plain":
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # The runner of trees; other engines without drafts have V2.
    command = [sys.executable, "-m", "benchmarks.vllm.cuda", "--run", name, "--model", str(args.model)]
    command += ["--parts", str(args.parts), *(["--times"] if args.times else [])]
    part(args, name).unlink(missing_ok=True)
    log = part(args, name).with_suffix(".log")
    try:
        with log.open("w") as file:
            subprocess.run(command, check=True, stdout=file, stderr=file, env=environment, timeout=args.limit)
        print(name, "has run", flush=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        if part(args, name).exists():  # Only its end went wrong.
            return
        lines = log.read_text().splitlines()
        message = next((line for line in reversed(lines) if "Error" in line), str(error))
        part(args, name).write_text(json.dumps({"error": message}))
        print(name, message, f"see {log}", sep="\n", flush=True)


def serve(name: str, model: Path, is_timed: bool) -> dict[str, Any]:
    """What one engine gives."""
    vllm: Any = importlib.import_module("vllm")
    arguments, speculation, _ = ENGINES[name]
    llm = vllm.LLM(
        str(model), max_model_len=1024, max_num_seqs=64, seed=0, kv_cache_memory_bytes=2 << 30,
        gpu_memory_utilization=0.12, disable_log_stats=False, speculative_config=speculation, **arguments,
    )  # fmt: skip
    ids, solo = generate(vllm, llm, PROMPTS), []
    again = generate(vllm, llm, PROMPTS)
    if speculation is None:
        solo = [generate(vllm, llm, [prompt])[0] for prompt in PROMPTS]
    found: dict[str, Any] = {"ids": ids, "again": _same(ids, again), "solo": _same(ids, solo) if solo else None}
    found["graphs"] = llm.llm_engine.vllm_config.compilation_config.cudagraph_mode.name
    found["attention"] = llm.collective_rpc(_attention)[0]
    if name in SAMPLED:
        options = {"temperature": 1.0, "top_k": 6, "max_tokens": SAMPLED_TOKENS}
        texts = generate(vllm, llm, [PROMPTS[6]] * NUM_SAMPLES, **options)
        found["sampled"] = [[text, count] for text, count in Counter(map(tuple, texts)).items()]
    if is_timed:
        found["ms_per_token"] = times(vllm, llm)
    if speculation and speculation["method"] == "treespec":
        found["stats"] = llm.collective_rpc("tree_stats")[0]
    return found


def generate(vllm: Any, llm: Any, prompts: Sequence[str], **options: Any) -> list[list[int]]:
    """The tokens of each answer; greedy unless the options say otherwise."""
    params = vllm.SamplingParams(**{"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, **options})
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return [list(answer.outputs[0].token_ids) for answer in llm.chat(chats, params, use_tqdm=False)]


def times(vllm: Any, llm: Any) -> dict[int, float]:
    """Milliseconds per token on prompts that the engine has not seen, by how many run at once."""
    texts, found = [prompt.text for prompt in held_out(None, sum(TIMED.values()))], {}
    for size, number in TIMED.items():
        chosen, texts = texts[:number], texts[number:]
        generate(vllm, llm, [prompt.text for prompt in (*DEMO, *DEMO)[:size]])  # Loads what batches of this size need.
        began = time.perf_counter()
        for first in range(0, number, size):
            generate(vllm, llm, chosen[first : first + size])
        found[size] = round(1e3 * (time.perf_counter() - began) / (number * TOKENS), 3)
    return found


def rows_of(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The engines' results; in place of tokens how many texts are the reference's."""
    rows = []
    for name, found in parts.items():
        reference = ENGINES[name].reference or ""
        row = {"engine": name, **{key: value for key, value in found.items() if key not in ("ids", "sampled")}}
        if "ids" in found and "ids" in parts.get(reference, {}):
            row |= {"reference": reference, "identical": _same(parts[reference]["ids"], found["ids"])}
        rows.append(row)
    return rows


def sampling_test(parts: dict[str, Any]) -> dict[str, float] | None:
    """The G-test of whether both engines of `SAMPLED` sample the same distribution."""
    if not all("sampled" in parts.get(name, {}) for name in SAMPLED):
        return None
    from scipy.stats import chi2_contingency

    one, two = (Counter({tuple(text): n for text, n in parts[name]["sampled"]}) for name in SAMPLED)
    cells = [(one[text], two[text]) for text, count in (one + two).items() if count >= FEWEST]
    rest = one.total() - sum(cell[0] for cell in cells), two.total() - sum(cell[1] for cell in cells)
    found: Any = chi2_contingency([*cells, rest] if any(rest) else cells, lambda_="log-likelihood")
    return {"G": round(float(found.statistic), 1), "degrees": int(found.dof), "p": round(float(found.pvalue), 3)}


def report(data: dict[str, Any]) -> str:
    """Markdown."""
    header = ["engine", "graphs", "attention", "as its reference", "again", "steps", "trees"]
    cells, timed = [], []
    for row in data["rows"]:
        stats, of = row.get("stats", {}), f"of {len(PROMPTS)}"
        same = f"{row['identical']} {of}, {row['reference']}" if "identical" in row else row.get("error", "")
        again = f"{row['again']} {of}" if "again" in row else ""
        names = row["engine"], row.get("graphs", ""), row.get("attention", "")
        cells.append([*names, same, again, *(str(stats.get(key, "")) for key in ("num_steps", "num_trees"))])
        if "ms_per_token" in row:
            timed.append([row["engine"], *map(str, row["ms_per_token"].values())])
    text = f"# Trees in vLLM {data['vllm']} on {data['card']}\n\n{len(PROMPTS)} prompts, {TOKENS} tokens each, greedy. "
    text += '"Again": with a full prefix cache.\n\n' + markdown_table(header, cells)
    if data["sampled"]:
        test = data["sampled"]
        text += f"\nSampled, {NUM_SAMPLES} texts of {SAMPLED_TOKENS} tokens by {SAMPLED[1]} and by {SAMPLED[0]}: "
        text += f"G = {test['G']} at {test['degrees']} degrees of freedom, p = {test['p']}.\n"
    if timed:
        text += "\n" + markdown_table(["ms per token", *(f"{size} at once" for size in TIMED)], timed)
    return f"{text}\n{settings_lines(data)}"


def _same(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def _attention(worker: Any) -> str:
    """The attention backends of an engine, by vLLM's names."""
    groups = [group for groups in worker.model_runner.attn_groups for group in groups]
    return ", ".join(sorted({group.backend.get_name() for group in groups}))


def _card() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"


if __name__ == "__main__":
    main()
