"""Is greedy decoding with trees in vLLM identical to plain vLLM, under vLLM's features?

The 100 held-out prompts of `benchmarks.vllm`, cut to their last tokens, 16 new tokens each, under every feature set
below: tokens, reasons to stop and logprobs of every request are compared with those of plain vLLM. A tiny random model
with SmolLM2's vocabulary and tokenizer runs all of them, SmolLM2-135M those that `--real` names.

    python -m benchmarks.vllm.identity [--prompts 100] [--features LoRA ...] [--real all]

Runs in the environment of `make test-vllm`. Progress is saved after every feature set: started again with the same
options, the run goes on where it stopped. With `--features` the results' other rows stay.
Results: benchmarks/results/vllm/identity.{json,md}.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common.progress import progress_bar
from benchmarks.common.prompts import mixed
from benchmarks.common.settings import RESULTS, load_average, markdown_table, settings, settings_lines, write_json
from benchmarks.vllm.engine import MODEL, run_jobs
from benchmarks.vllm.models import random_adapters, tiny_smollm2

GREEDY = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
MOST_PROMPT = 112
"""Tokens: with them the end of the context comes within 16 new ones, see `CONTEXT`."""
CONTEXT = 128
CAPITALS = "A-Z"
REGEX = rf"[{CAPITALS}][a-z]+( [a-z]+){{3,12}}\."
TREES = {
    "method": "treespec",
    "drafter": "recycling",
    "tree": [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]],
}
"""Many branches: what suffix lookup remembers of an earlier feature set would make chains of most trees."""
NUM_ADAPTERS = 3
LORA = {"enable_lora": True, "max_loras": NUM_ADAPTERS, "max_lora_rank": 8}
ROOMY = {"max_num_seqs": 16, "max_num_batched_tokens": 512, "num_gpu_blocks_override": 1000}
TIGHT = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 16}
ENGINES: dict[str, dict[str, Any]] = {
    "roomy": ROOMY,
    "tight": TIGHT,
    "adapters": {**ROOMY, **LORA},
    "tight adapters": {**TIGHT, **LORA},
}
"""In blocks of 32 tokens. Trees get their scratch blocks on top of these: a quarter of the cache.

Plain vLLM gets one slot of an adapter more: on a CPU it gives the base model's requests the adapter of the last slot.
"""


def features(number: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """By feature set the engine, and the parameters of prompt `number`."""
    third = number % 3
    filters = [
        {"bad_words": [" the", " is a", "."]},
        {"allowed_token_ids": list(range(200, 2000))},
        {"logit_bias": {"260": 4.0}},
    ]
    penalties = {"presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    return {
        "plain greedy": ("roomy", {}),
        "prefix cache: the same prompts again": ("roomy", {}),
        "logprobs": ("roomy", {"logprobs": 3} | ({"prompt_logprobs": 1} if number % 10 == 0 else {})),
        "penalties": ("roomy", penalties),
        "min tokens": ("roomy", {"ignore_eos": False, "min_tokens": 10, "stop_token_ids": [198, 28, 30]}),
        "bad words, allowed tokens, logit bias": ("roomy", filters[third]),
        "stop strings": ("roomy", {"ignore_eos": False, "stop": ["\n", " and", "the"]}),
        "a grammar for every other request": ("roomy", {"regex": REGEX} if number % 2 else {}),
        "ragged lengths": ("roomy", {"max_tokens": 1 + number % 16}),
        "n = 2": ("roomy", {"n": 2, "temperature": 1.0, "top_k": 1}),
        "chunks of prompts, preemption": ("tight", {}),
        "end of the context": ("tight", {"max_tokens": 1000}),
        "LoRA: three adapters and the base model": ("adapters", {"adapter": number % 4}),
        "LoRA: the same prompts, other adapters": ("adapters", {"adapter": (number + 1) % 4}),
        "LoRA, prefix cache: the first adapters again": ("adapters", {"adapter": number % 4}),
        "LoRA, chunks of prompts, preemption": ("tight adapters", {"adapter": number % 4}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--features", nargs="*", default=[""], help="feature sets of the tiny model: beginnings")
    parser.add_argument("--real", nargs="*", default=[], help="feature sets for SmolLM2-135M too: beginnings, or all")
    parser.add_argument("--output", type=Path, default=RESULTS / "vllm" / "identity.json")
    args = parser.parse_args()
    console, cache = Console(), args.output.parent / ".identity"
    cache.mkdir(parents=True, exist_ok=True)
    prompts, names = encoded(args.prompts), list(features(0))
    real = names if "all" in args.real else [name for name in names if name.startswith(tuple(args.real or "-"))]
    tiny = [name for name in names if name.startswith(tuple(args.features))]
    wanted = {"tiny": tiny, "SmolLM2-135M": real}
    found: dict[str, dict[str, Any]] = {}
    with progress_bar(console) as progress:
        task = progress.add_task("", total=2 * (len(tiny) + len(real)))
        for model, chosen in wanted.items():
            folder = tiny_smollm2(cache / "tiny") if model == "tiny" else MODEL
            adapters = random_adapters(cache / f"{model} adapters", folder, NUM_ADAPTERS) if chosen else []
            for method in ("plain", "trees"):
                for engine in ENGINES:
                    jobs = {name: job(name, prompts, adapters) for name in chosen if features(0)[name][0] == engine}
                    kept = cache / f"{model} {method} {engine} {args.prompts}.json"
                    progress.update(task, description=f"{model}, {method}, {engine}")
                    answers = answer(folder, engine, method, jobs, kept, lambda _: progress.advance(task))
                    found.setdefault(model, {}).setdefault(method, {}).update(answers)
    finish(args, console, wanted, found)


def encoded(number: int) -> list[list[int]]:
    """The ends of the prompts as SmolLM2's tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    turns = [[{"role": "user", "content": prompt.text}] for prompt in mixed(number, None, lambda _: None)]
    texts = [tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns]
    return [
        tokenizer(text, add_special_tokens=False).input_ids[-(MOST_PROMPT + row % 15) :]
        for row, text in enumerate(texts)
    ]


def job(name: str, prompts: list[list[int]], adapters: list[Path]) -> dict[str, Any]:
    """One feature set for all prompts; "adapter" of its parameters is a number, 0 for the base model."""
    params = [{**GREEDY, **features(row)[name][1]} for row in range(len(prompts))]
    numbers = [one.pop("adapter", None) for one in params]
    asked: dict[str, Any] = {"prompts": prompts, "params": params}
    folders = [None, *map(str, adapters)]
    return asked if None in numbers else asked | {"adapters": [folders[number] for number in numbers]}


def answer(folder: Path, engine: str, method: str, jobs: dict[str, Any], kept: Path, on_done: Any) -> dict[str, Any]:
    """Outputs and counts of one engine's feature sets, those that are there already included."""
    if not jobs:
        return {}
    arguments = {**ENGINES[engine], "model": str(folder), "max_model_len": CONTEXT, "enable_prefix_caching": True}
    arguments.pop("kv_cache_memory_bytes", None)
    if method == "plain" and "max_loras" in arguments:
        arguments["max_loras"] += 1
    if method == "trees":
        blocks = arguments["num_gpu_blocks_override"]
        arguments |= {"speculative_config": TREES, "num_gpu_blocks_override": blocks + blocks // 3 + 1}
    known = json.loads(kept.read_text()) if kept.exists() else {}
    for name in jobs:
        if name in known:
            on_done(name)
    answers = run_jobs(arguments, jobs, seconds=3600, kept=kept, on_done=on_done)
    return {name: {"outputs": answers[name], "counts": answers["counts"][name]} for name in jobs}


def finish(args: argparse.Namespace, console: Console, wanted: dict[str, list[str]], found: dict[str, Any]) -> None:
    rows = [
        compare(model, name, found[model]["plain"][name], found[model]["trees"][name])
        for model, chosen in wanted.items()
        for name in chosen
    ]
    data = settings(prompts=args.prompts, load_average=load_average(), rows=_earlier(args.output, rows) + rows)
    write_json(args.output, data)
    args.output.with_suffix(".md").write_text(report(data))
    console.print(report(data))


def _earlier(output: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a written file of results that are not among these."""
    found = json.loads(output.read_text())["rows"] if output.exists() else []
    new = {(row["model"], row["features"]) for row in rows}
    return [row for row in found if (row["model"], row["features"]) not in new]


def compare(model: str, name: str, plain: dict[str, Any], trees: dict[str, Any]) -> dict[str, Any]:
    """One row of the results; `different` lists the numbers of the answers that differ."""
    pairs = list(zip(plain["outputs"], trees["outputs"], strict=True))
    counts = trees["counts"]
    return {
        "model": model,
        "features": name,
        "answers": len(pairs),
        "tokens": sum(len(one["ids"]) for one, _ in pairs),
        "identical": sum(one == other for one, other in pairs),
        "different": [number for number, (one, other) in enumerate(pairs) if one != other],
        "trees": int(counts["num_trees"]),
        "accepted": int(counts["num_accepted_tokens"]),
        "preemptions": int(counts["vllm:num_preemptions"]),
        "cached": int(counts["vllm:prefix_cache_hits"]),
    }


def report(data: dict[str, Any]) -> str:
    """Markdown."""
    header = [
        "model",
        "features",
        "answers",
        "identical",
        "tokens",
        "trees",
        "accepted",
        "preemptions",
        "from the cache",
    ]
    keys = ["model", "features", "answers", "identical", "tokens", "trees", "accepted", "preemptions", "cached"]
    cells = [[str(row[key]) for key in keys] for row in data["rows"]]
    title = f"# Greedy trees in vLLM against plain vLLM\n\n{data['prompts']} held-out prompts, their last 112 to 126 "
    title += "tokens; identical are tokens, reason to stop and logprobs. `trees`: verified trees with a branch; "
    title += "`accepted`: draft tokens; `from the cache`: prompt tokens of the prefix cache. "
    title += "Runs with `--features` add rows: the command below is the last one's.\n\n"
    return title + markdown_table(header, cells) + "\n" + settings_lines(data)


if __name__ == "__main__":
    main()
