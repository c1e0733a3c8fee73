"""What a change costs: whole calls by two checkouts of treespec, on the same prompts and the same model.

Pairs of processes, one for each checkout's library, decode every prompt one after the other, in turn the earlier and
the later first. SmolLM2-135M-Instruct; a fixed tree of 8, so that times decide nothing: with a head, and with lookups.

    python -m benchmarks.before_after ../earlier --spec-bench question.jsonl
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

BEFORE, AFTER = "before", "after"
NUM_PAIRS = 4
DRAFTERS = ("head", "lookups")
SAMPLING: dict[str, dict[str, Any]] = {
    "T = 0": {"do_sample": False},
    "T = 1": {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
}


def serve(threads: int, num_new: int) -> None:
    """Decode what comes on the standard input, a job a line, and answer with tokens and CPU seconds."""
    torch.set_num_threads(threads)
    import treespec
    from treespec.hf.loading import smollm2

    model: Any = smollm2.load(say=lambda _: None)[0]
    head = treespec.load_drafter(treespec.shipped_head("SmolLM2-135M-Instruct"), model)
    drafters = {"head": head, "lookups": [treespec.TokenRecycling(), treespec.SuffixLookup()]}
    speculations = {name: treespec.TreeSpeculation(parts, tree=8, seed=0) for name, parts in drafters.items()}
    print(json.dumps(str(Path(treespec.__file__).parents[1])), flush=True)
    for line in sys.stdin:
        name, sampling, ids = json.loads(line)
        options = {"max_new_tokens": num_new, "pad_token_id": 0} | SAMPLING[sampling]
        inputs = torch.tensor([ids])
        start = time.process_time()
        out = model.generate(
            inputs, attention_mask=torch.ones_like(inputs), **options, custom_generate=speculations[name]
        )
        print(json.dumps([out[0, len(ids) :].tolist(), time.process_time() - start]), flush=True)


def server(checkout: Path, options: list[str]) -> Any:
    """A process that decodes with a checkout's library."""
    from benchmarks.peers.contestants import Process

    command = [sys.executable, __file__, "--serve", *options]
    process = Process(command, os.environ | {"PYTHONPATH": str(checkout)}, checkout)
    assert process.greeting == str(checkout), f"{process.greeting} decodes in place of {checkout}"
    return process


def compare(checkouts: dict[str, Path], prompts: dict[str, list[int]], options: list[str]) -> list[dict[str, Any]]:
    """CPU seconds before and after, and whether the texts are the same, by drafters, sampling and prompt.

    By several pairs of processes for a part of the prompts each: where a process has its weights in memory makes some
    per cent of its time.
    """
    rows = []
    for number in track(range(NUM_PAIRS)):
        jobs = [
            (name, sampling, key)
            for key in list(prompts)[number::NUM_PAIRS]
            for name in DRAFTERS
            for sampling in SAMPLING
        ]
        with ExitStack() as stack:
            order = [BEFORE, AFTER] if number % 2 else [AFTER, BEFORE]
            servers = {which: stack.enter_context(closing(server(checkouts[which], options))) for which in order}
            for name in DRAFTERS:  # First calls check and compile.
                for process in servers.values():
                    process.ask((name, "T = 0", next(iter(prompts.values()))))
            for name, sampling, key in jobs:
                order.reverse()
                found = {which: servers[which].ask((name, sampling, prompts[key])) for which in order}
                seconds = {which: answer[1] for which, answer in found.items()}
                is_same = found[BEFORE][0] == found[AFTER][0]
                rows.append({"drafters": name, "sampling": sampling, "prompt": key, "is_same": is_same} | seconds)
    return rows


def report(data: dict[str, Any]) -> str:
    from benchmarks.common.estimates import quotient, ratio
    from benchmarks.common.settings import markdown_table

    lines = []
    for name in DRAFTERS:
        for sampling in SAMPLING:
            rows = [row for row in data["rows"] if (row["drafters"], row["sampling"]) == (name, sampling)]
            times = [[row[which] for row in rows] for which in (BEFORE, AFTER)]
            same = f"{sum(row['is_same'] for row in rows)} of {len(rows)}"
            lines.append([name, sampling, ratio(*times).text(), quotient(*times).text(), same])
    header = ["drafters", "sampling", "CPU time before / after: median", "of all", "texts that are the same"]
    return "\n".join(
        [
            f"# Before and after: {data['before']} and {data['after']}\n",
            f"Whole calls, {data['new_tokens']} new tokens, a tree of 8, pairs; brackets: 95 % intervals. Load average "
            f"{data['load_average']} before, {data['load_average_after']} after.\n",
            markdown_table(header, lines),
        ]
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(*map(int, sys.argv[2:]))
        return
    from benchmarks.common.prompts import QUESTIONS, encode, held_out
    from benchmarks.common.settings import RESULTS, load_average, parser, publish, settings
    from treespec.hf.loading import smollm2

    options = parser(__doc__ or "", threads=1)
    options.add_argument("before", type=Path, help="the folder of the earlier checkout")
    options.add_argument("--after", type=Path, default=Path(__file__).parents[1], help="of the later one")
    options.add_argument(
        "--names", nargs=2, default=("the earlier", "the later commit"), help="of both, for the report"
    )
    options.add_argument("--spec-bench", type=Path, help=QUESTIONS)
    options.add_argument("--prompts", type=int, default=20)
    options.add_argument("--new-tokens", type=int, default=64)
    options.add_argument("--output", type=Path, default=RESULTS / "before_after.json")
    args = options.parse_args()
    tokenizer = smollm2.load()[1]
    chosen = held_out(args.spec_bench, args.prompts)
    prompts = {prompt.name: encode(tokenizer, [prompt])["input_ids"][0].tolist() for prompt in chosen}
    data = settings(new_tokens=args.new_tokens, before=args.names[0], after=args.names[1])
    checkouts = {BEFORE: args.before.resolve(), AFTER: args.after.resolve()}
    data["rows"] = compare(checkouts, prompts, [str(args.threads), str(args.new_tokens)])
    data["load_average_after"] = load_average()
    publish(args.output, data, report(data))


if __name__ == "__main__":
    main()
