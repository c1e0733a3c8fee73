"""Speeds in pairs: trees, chains, plain decoding, what people run today and other libraries, on held-out prompts.

    python -m benchmarks.peers --spec-bench question.jsonl --temperatures 0 --minutes 30
    python -m benchmarks.peers --drafters head warm random --batches 1 4 8 --output control.json
    python -m benchmarks.peers --drafters runs/mine/drafter runs/mine/drafter+warm --shapes chain-4 tree-16
    make bench-peers ARGS="--spec-bench question.jsonl --prompts 20"

Every prompt, or batch of them, is decoded by all contestants, one after the other, in rotating order, with the same
float32 weights; other libraries wait in processes of their own environments. Reading the prompt is left out: the time
until plain decoding's first token, or a tree's first step, is subtracted; the result has the speed of whole calls, too.
Contestants of treespec and transformers run from the fastest linear layers (`treespec.optimize`) but for plain
`generate` and compiled plain decoding. The shipped head's weights have 8 bits. Drafters learn from prompt to prompt.
With `--contexts` the prompts stand behind other texts, together exactly as long. Finished prompts are kept in the
user's cache folder: started again, a run goes on where it stopped, with new drafters. Other cells of the result file
stay.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from benchmarks.common.prompts import Prompt, encode, held_out, lengthened
from benchmarks.common.settings import RESULTS, digest, load_average, parser, settings, write_json
from benchmarks.peers.contestants import AUTO, COMPILED, MERGED, OTHERS, PLAIN, SHAPES, Makers
from benchmarks.peers.report import picture, report
from treespec.commands.console import progress_bar
from treespec.hf.loading import smollm2
from treespec.lab.measure.paired import Bench, Run, in_turn
from treespec.lab.selftest.agreement import Plain, compare, plain_greedy
from treespec.lab.store import Store


class Cell(NamedTuple):
    """What is measured together. `context`: tokens of every prompt, None as they are."""

    batch: int
    context: int | None
    temperature: float

    @property
    def name(self) -> str:
        batch = "" if self.batch == 1 else f"batch {self.batch}, "
        context = "" if self.context is None else f"context {self.context}, "
        return f"{batch}{context}T = {self.temperature:g}"


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    makers = Makers(model, tokenizer, args.threads, args.draft_model)
    deadline = time.perf_counter() + 60 * args.minutes
    data: dict[str, Any] = json.loads(args.output.read_text()) if args.output.is_file() else {"found": {}}
    with progress_bar(console) as progress:
        for cell in map(Cell._make, product(args.batches, args.contexts, args.temperatures)):
            run = settings(seed=args.seed, new_tokens=args.new_tokens)
            found = measure(args, cell, makers, tokenizer, deadline, progress)
            if found["prompts"]:
                data["found"][cell.name] = found | {"run": run}
                write_json(args.output, data)
    picture(data, args.output.with_suffix(".png"))
    text = report(data, __doc__ or "", args.output.with_suffix(".png").name)
    args.output.with_suffix(".md").write_text(text)
    console.print(text, markup=False)


def measure(
    args: argparse.Namespace, cell: Cell, makers: Makers, tokenizer: Any, deadline: float, progress: Progress
) -> dict[str, Any]:
    """By prompt and contestant: what was measured; the loads, and who was left out and why."""
    inputs = dict(batches(held_out(args.spec_bench, args.prompts), cell, tokenizer))
    made = makers.make(args.contestants, args.drafters, args.shapes, cell.batch == 1)
    sampling = {"do_sample": True, "temperature": cell.temperature, "top_k": 0} if cell.temperature else None
    bench = Bench(makers.optimized, inputs, args.new_tokens, sampling or {"do_sample": False}, args.seed)
    names = [contestant.name for contestant in made.contestants]
    key = digest(args.new_tokens, args.seed, args.threads, cell, names)
    store, loads = Store(smollm2.converted_folder().parent / "peers" / f"{key}.jsonl"), [load_average()]
    todo = [name for name in inputs if name not in store]
    task = progress.add_task(cell.name, total=len(inputs), completed=len(inputs) - len(todo))
    for name, runs in in_turn(made.contestants, bench, 1, todo if time.perf_counter() < deadline else []):
        kinds = {} if cell.temperature else agreements(bench, name, runs)
        store.get(name, lambda runs=runs, kinds=kinds: {n: as_plain(run, kinds.get(n)) for n, run in runs.items()})
        loads.append(load_average())
        progress.advance(task)
        if time.perf_counter() > deadline:
            break
    made.close()
    found = {name: store.get(name, dict) for name in inputs if name in store}
    return {"prompts": found, "loads": loads, "left_out": made.left_out}


def batches(prompts: list[Prompt], cell: Cell, tokenizer: Any) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Names and arguments of `generate` of the cell's batches, a prompt each where its size is one."""
    for start in range(0, len(prompts) - cell.batch + 1, cell.batch):
        part = prompts[start : start + cell.batch]
        name = " | ".join(prompt.name for prompt in part)
        if cell.context is None:
            yield name, encode(tokenizer, part)
        else:
            ids = torch.tensor([lengthened(tokenizer, prompt, prompts, cell.context) for prompt in part])
            yield name, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def as_plain(run: Run, agreement: str | None) -> dict[str, Any]:
    """A run as plain data, all rows' tokens one after the other.

    `passes` are those that decided tokens: not a tree's reading of the prompt. Other libraries do not say how many.
    """
    tokens = [token for row in run.rows for token in row]
    found = {"seconds": run.seconds, "tokens": tokens, "reading": run.reading, "num_read": run.num_read}
    passes = {"passes": (run.num_passes - (run.num_read == 0)) * len(run.rows)} if run.num_passes else {}
    return found | passes | ({} if agreement is None else {"agreement": agreement})


def agreements(bench: Bench, prompt: str, runs: dict[str, Run]) -> dict[str, str]:
    """By contestant: identical with plain `generate`, tie (its two best logits are that close) or different."""
    inputs, references = bench.inputs[prompt], dict[int, Plain]()
    masks = inputs["attention_mask"].bool() if "attention_mask" in inputs else inputs["input_ids"].ge(0)

    def kind(row: int, tokens: list[int]) -> str:
        if tokens == runs[PLAIN].rows[row]:
            return "identical"
        ids = inputs["input_ids"][row][masks[row]]
        if row not in references:
            single = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
            references[row] = plain_greedy(bench.model, single, bench.num_new)
        return "tie" if compare(bench.model, ids, references[row], tokens).is_right else "different"

    worst = ("different", "tie", "identical")
    return {
        name: min((kind(row, tokens) for row, tokens in enumerate(run.rows)), key=worst.index)
        for name, run in runs.items()
    }


def _arguments() -> argparse.Namespace:
    options = parser((__doc__ or "").split("\n\n")[0], threads=2)
    options.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl; without it two sources are used")
    options.add_argument("--prompts", type=int, default=100, help="(default: %(default)s)")
    options.add_argument("--new-tokens", type=int, default=48, help="(default: %(default)s)")
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0], help="(default: 0)")
    options.add_argument("--batches", nargs="+", type=int, default=[1], metavar="ROWS", help="(default: 1)")
    options.add_argument("--contexts", nargs="+", type=int, default=[None], metavar="TOKENS")
    options.add_argument("--minutes", type=float, default=60.0, help="no prompt is begun later (default: %(default)s)")
    options.add_argument(
        "--drafters", nargs="*", default=[MERGED], metavar="NAME",
        help=f"head, warm, recycling, suffix, random, a trained head's or a draft model's folder; joined by + they are "
        f"merged (default: {MERGED})",
    )  # fmt: skip
    default = ["chain-2", "chain-4", "chain-6", "tree-8", AUTO]
    options.add_argument("--shapes", nargs="*", default=default, choices=SHAPES, metavar="NAME", help=" ".join(SHAPES))
    options.add_argument(
        "--contestants", nargs="*", default=[COMPILED, "lookup"], choices=[*OTHERS, "all"], metavar="NAME",
        help=f"besides plain decoding (default: {COMPILED} lookup): all, or some of {' '.join(OTHERS)}",
    )  # fmt: skip
    options.add_argument("--draft-model", type=Path, help="a folder, for `assisted`")
    options.add_argument("--output", type=Path, default=RESULTS / "peers" / "peers.json")
    args = options.parse_args()
    args.contestants = list(OTHERS) if "all" in args.contestants else args.contestants
    return args


if __name__ == "__main__":
    main()
