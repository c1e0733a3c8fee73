"""Trees in vLLM on a CUDA device against plain vLLM: greedy tokens, a sampled distribution and, on request, times.

    python -m benchmarks.vllm.cuda --model FOLDER --at-once 5
    python -m benchmarks.vllm.cuda --model FOLDER --only "bf16 plain" "bf16 auto" --times

FOLDER has SmolLM2-135M-Instruct. Each engine is a process of its own, `--at-once` of them at a time. What it found, and
its log, stay under `--parts`, so that several calls make one report. `--times` needs engines one after the other; its
prompts, of HumanEval and GSM8K, are new to every engine. The others run in one batch, and again with a full prefix
cache. Engines "8B", of Llama-3.1-8B's sizes with dummy weights, are for times only: their texts mean nothing and are
written again and again, so that trees of looked-up tokens are accepted.
"""

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
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.common.prompts import DEMO, held_out
from benchmarks.common.settings import RESULTS, markdown_table, publish, settings
from benchmarks.vllm import ENVIRONMENT, NAME

TREE = {"method": "treespec", "tree": 16, "head": NAME, "warm_start": NAME}
CHAIN = {**TREE, "tree": "[(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]"}
AUTO, LOOKUPS = {**TREE, "tree": "auto"}, {"method": "treespec", "tree": 12, "warm_start": NAME}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
EAGER, F32, BF16 = {"enforce_eager": True}, {"dtype": "float32"}, {"dtype": "bfloat16"}
TRITON, FLASH, FLEX = ({"attention_backend": name} for name in ("TRITON_ATTN", "FLASH_ATTN", "FLEX_ATTENTION"))
LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
DUMMY = {**BF16, "load_format": "dummy", "hf_overrides": LLAMA_8B, "kv_cache_memory_bytes": 8 << 30}


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
    "8B plain": Engine(DUMMY),
    "8B tree": Engine(DUMMY, {"method": "treespec", "tree": 16}),
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
TIMED = {1: 6, 8: 4, 32: 3}
"""Batches by how many prompts are run at once."""
NODES = 1, 4, 8, 16
"""Sizes of the "8B" engine's trees."""
COUNTS = "num_steps", "num_verified", "num_trees", "num_draft_tokens", "num_accepted_tokens", "pass_ms", "draft_ms"
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
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    data = settings(vllm=importlib.metadata.version("vllm"), card=card)
    data |= {"rows": rows_of(parts), "sampled": sampling_test(parts)}
    publish(args.out, data, report(data))


def part(args: argparse.Namespace, name: str) -> Path:
    """The file of what an engine found."""
    return args.parts / f"{name}.json"


def start(name: str, args: argparse.Namespace) -> None:
    """One engine in a process of its own."""
    environment = {**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO"}
    if args.times:  # As vLLM runs by default; the second variable lets functions through to its processes.
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
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
    """Run one engine; returns its texts, times and statistics."""
    vllm: Any = importlib.import_module("vllm")
    arguments, speculation, _ = ENGINES[name]
    options = {"max_model_len": 1024, "max_num_seqs": 64, "kv_cache_memory_bytes": 2 << 30, **arguments}
    llm = vllm.LLM(
        str(model), seed=0, gpu_memory_utilization=0.12, disable_log_stats=False, speculative_config=speculation,
        **options,
    )  # fmt: skip
    found: dict[str, Any] = {"graphs": llm.llm_engine.vllm_config.compilation_config.cudagraph_mode.name}
    found["attention"] = llm.collective_rpc(_attention)[0]
    if not _is_dummy(name):
        found |= texts_of(vllm, llm, is_alone=speculation is None)
    if name in SAMPLED:
        options = {"temperature": 1.0, "top_k": 6, "max_tokens": SAMPLED_TOKENS}
        texts = generate(vllm, llm, [PROMPTS[6]] * NUM_SAMPLES, **options)
        found["sampled"] = [[text, count] for text, count in Counter(map(tuple, texts)).items()]
    if is_timed:
        found["times"] = times(vllm, llm, name)
    if _has_trees(name):
        found["stats"] = llm.collective_rpc("tree_stats")[0]
    return found


def texts_of(vllm: Any, llm: Any, is_alone: bool) -> dict[str, Any]:
    """The tokens of `PROMPTS`, how many texts are the same again and, if wanted, one by one."""
    ids = generate(vllm, llm, PROMPTS)
    again = _same(ids, generate(vllm, llm, PROMPTS))
    solo = _same(ids, [generate(vllm, llm, [prompt])[0] for prompt in PROMPTS]) if is_alone else None
    return {"ids": ids, "again": again, "solo": solo}


def generate(vllm: Any, llm: Any, prompts: Sequence[str], **options: Any) -> list[list[int]]:
    """The tokens of each answer; greedy unless the options say otherwise."""
    params = vllm.SamplingParams(
        **{"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "detokenize": False, **options}
    )
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return [list(answer.outputs[0].token_ids) for answer in llm.chat(chats, params, use_tqdm=False)]


def times(vllm: Any, llm: Any, name: str) -> list[dict[str, Any]]:
    """One row per number of prompts at once, and per size of trees of dummy weights; each is printed at once."""
    rows, is_dummy = [], _is_dummy(name)
    for nodes in NODES if is_dummy and _has_trees(name) else (None,):
        texts = iter([prompt.text for prompt in held_out((), sum(size * number for size, number in TIMED.items()))])
        if nodes is not None:
            llm.collective_rpc(_set_tree, args=(nodes,))
        for size, number in TIMED.items():
            batches = [list(islice(texts, size)) for _ in range(number)]
            first = batches[0] if is_dummy else list(islice(cycle(prompt.text for prompt in DEMO), size))
            for _ in range(2):  # Loads what batches of this size need.
                generate(vllm, llm, first)
            measured = measure(vllm, llm, [first] * number if is_dummy else batches, name)
            rows.append({"nodes": nodes, "at_once": size, **measured})
            print("TIMES", name, json.dumps(rows[-1]), flush=True)
    return rows


def measure(vllm: Any, llm: Any, batches: Sequence[Sequence[str]], name: str) -> dict[str, Any]:
    """Milliseconds per token by wall clock, of each batch; of all of them per step, where the steps are known."""
    before, seconds = _counts(llm, name), []
    for batch in batches:
        began = time.perf_counter()
        generate(vllm, llm, batch)
        seconds.append(time.perf_counter() - began)
    counts = {key: value - before[key] for key, value in _counts(llm, name).items()}
    row: dict[str, Any] = {"ms_per_token": [round(1e3 * took / (len(batches[0]) * TOKENS), 3) for took in seconds]}
    if ENGINES[name].speculation is None:
        counts["num_steps"] = len(batches) * TOKENS
    if counts:
        row["ms_per_step"] = round(1e3 * sum(seconds) / counts["num_steps"], 3)
    return row | counts


def _counts(llm: Any, name: str) -> dict[str, float]:
    """Counts of `tree_stats`, see `ServingStats`; nothing of engines without trees."""
    stats = llm.collective_rpc("tree_stats")[0] if _has_trees(name) else None
    return {key: stats[key] for key in COUNTS} if stats else {}


def _set_tree(worker: Any, nodes: int) -> None:
    """Let a running engine draft combs of another size: two children of each node of one path; of one node, nothing."""
    from treespec.vllm.drafting import Drafting

    runner, comb = worker.model_runner, [(0,) * depth + (rank,) for depth in range(nodes // 2) for rank in (0, 1)]
    runner._tree_options = replace(runner._tree_options, tree=comb[: nodes - 1] or 1)
    runner._drafting = Drafting(runner._tree_options, runner.model_config.get_vocab_size(), is_on_host=False)


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
        timed += [timed_cells(row["engine"], measured) for measured in row.get("times", ())]
    text = f"# Trees in vLLM {data['vllm']} on {data['card']}\n\n{len(PROMPTS)} prompts, {TOKENS} tokens each, greedy. "
    text += '"Again": with a full prefix cache.\n\n' + markdown_table(header, cells)
    if data["sampled"]:
        test = data["sampled"]
        text += f"\nSampled, {NUM_SAMPLES} texts of {SAMPLED_TOKENS} tokens by {SAMPLED[1]} and by {SAMPLED[0]}: "
        text += f"G = {test['G']} at {test['degrees']} degrees of freedom, p = {test['p']}.\n"
    if timed:
        header = ["engine", "tree", "at once", "ms per token", "least", "most", "ms per step", "of it pass", "draft"]
        text += "\n" + markdown_table([*header, "nodes per text", "tokens per text"], timed)
    return text


def timed_cells(name: str, row: dict[str, Any]) -> list[str]:
    """One row of `measure`: the median of its batches, and what a step took, drafted and accepted on average."""
    ms, steps, texts = row["ms_per_token"], row.get("num_steps"), row.get("num_verified")
    cells = [name, str(row["nodes"] or ""), str(row["at_once"]), *(f"{f(ms):.3f}" for f in (median, min, max))]
    cells.append(f"{row['ms_per_step']:.2f}" if steps else "")
    if not texts:
        return [*cells, "", "", "", ""]
    cells += [f"{row[key] / steps:.2f}" for key in ("pass_ms", "draft_ms")]
    return [*cells, *(f"{1 + row[key] / texts:.2f}" for key in ("num_draft_tokens", "num_accepted_tokens"))]


def _is_dummy(name: str) -> bool:
    return "load_format" in ENGINES[name].arguments


def _has_trees(name: str) -> bool:
    speculation = ENGINES[name].speculation
    return speculation is not None and speculation["method"] == "treespec"


def _same(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def _attention(worker: Any) -> str:
    """The attention backends of an engine, by vLLM's names."""
    groups = [group for groups in worker.model_runner.attn_groups for group in groups]
    return ", ".join(sorted({group.backend.get_name() for group in groups}))


if __name__ == "__main__":
    main()
