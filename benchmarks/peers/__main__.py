"""Speeds in pairs: trees, chains, plain decoding, what people run today and other libraries, on held-out prompts.

    python -m benchmarks.peers --threads 1 --spec-bench question.jsonl --drafters head+warm first --minutes 35
    python -m benchmarks.peers --threads 1 --drafters head+warm random --busy 0 1 --output control.json
    python -m benchmarks.peers --threads 1 --batches 4 8 --contexts 256 1024 4096 --output batches.json
    python -m benchmarks.peers --drafters runs/mine/drafter runs/mine/drafter+warm --shapes chain-4 tree-16

Every prompt, or batch of them, is decoded by all contestants, one after the other, in rotating order, with the same
float32 weights; other libraries wait in processes of their own environments. Whole calls read the prompt; for decoding
alone the time until the first token is subtracted. In batches plain decoding has less than one token per pass, as rows
that have ended go on counting passes. Contestants of treespec and transformers run from the fastest linear layers
(`treespec.optimize`) but for plain `generate` and compiled plain decoding. The shipped head's weights have 8 bits.
`tree="auto"` is what `speed_up` returns. Drafters and control learn from prompt to prompt, but in first calls, each by
a new object. With `--contexts` the prompts stand behind other texts, together exactly as long; with `--busy` other
processes multiply matrices on the same core. Finished prompts are kept in the user's cache folder: started again, a run
goes on where it stopped, with new drafters. Other cells of the result file stay."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from benchmarks.common.prompts import QUESTIONS, Prompt, encode, held_out, lengthened
from benchmarks.common.settings import RESULTS, digest, load_average, parser, settings, write_json
from benchmarks.peers.contestants import AUTO, MERGED, OTHERS, PLAIN, SHAPES, Makers
from benchmarks.peers.process import environment
from benchmarks.peers.report import as_plain, picture, report
from treespec.commands.console import progress_bar
from treespec.lab import smollm2
from treespec.lab.measure.paired import Bench, Run, in_turn
from treespec.lab.selftest.agreement import Plain, compare, plain_greedy
from treespec.lab.store import Store


class Cell(NamedTuple):
    """Conditions of one comparison. `context`: tokens of every prompt, None as they are. `busy`: see `busy_core`."""

    batch: int
    context: int | None
    busy: int
    temperature: float

    @property
    def name(self) -> str:
        batch = "" if self.batch == 1 else f"batch {self.batch}, "
        context = "" if self.context is None else f"context {self.context}, "
        busy = f"{self.busy} more on the core, " * (self.busy > 0)
        return f"{batch}{context}{busy}T = {self.temperature:g}"


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    makers = Makers(model, tokenizer, args.threads, args.draft_model)
    end = time.perf_counter() + 60 * args.minutes
    cells = [*map(Cell._make, product(args.batches, args.contexts, args.busy, args.temperatures))]
    data: dict[str, Any] = json.loads(args.output.read_text()) if args.output.is_file() else {"found": {}}
    with progress_bar(console) as progress:
        for number, cell in enumerate(cells):
            run, now = settings(seed=args.seed, new_tokens=args.new_tokens), time.perf_counter()
            deadline = now + (end - now) / (len(cells) - number)
            with busy_core(cell.busy):
                found = measure(args, cell, makers, tokenizer, deadline, progress)
            if found["prompts"]:
                data["found"][cell.name] = found | {"run": run}
                write_json(args.output, data)
    picture(data, args.output.with_suffix(".png"))
    text = report(data, __doc__ or "", args.output.with_suffix(".png").name)
    args.output.with_suffix(".md").write_text(text)
    console.print(text, markup=False)


@contextmanager
def busy_core(num_others: int) -> Iterator[None]:
    """Inside so many other processes compute on the one core that this process has then."""
    if not num_others:
        yield
        return
    cores = os.sched_getaffinity(0)
    code = f"import os, numpy; a = numpy.ones((512, 512))\nwhile os.getppid() == {os.getpid()}: a @ a"
    os.sched_setaffinity(0, {min(cores)})
    others = [subprocess.Popen([sys.executable, "-c", code], env=environment(1)) for _ in range(num_others)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, cores)


def measure(
    args: argparse.Namespace, cell: Cell, makers: Makers, tokenizer: Any, deadline: float, progress: Progress
) -> dict[str, Any]:
    """By prompt and contestant: what was measured; the loads, and who was left out and why.

    `call`: the number of the call of the contestants' objects, the first of which warms up.
    """
    prompts, before = (held_out(args.spec_bench, count) for count in (args.prompts, max(args.prompts, 100)))
    inputs = dict(batches(prompts, before, cell, tokenizer))
    made = makers.make(args.contestants, args.drafters, args.shapes, cell.batch == 1)
    sampling = {"do_sample": True, "temperature": cell.temperature, "top_k": 0} if cell.temperature else None
    bench = Bench(makers.optimized, inputs, args.new_tokens, sampling or {"do_sample": False}, args.seed)
    names = [contestant.name for contestant in made.contestants]
    key = digest(args.new_tokens, args.seed, args.threads, cell, names)
    store, loads = Store(smollm2.converted_folder().parent / "peers" / f"{key}.jsonl"), [load_average()]
    todo = [name for name in inputs if name not in store]
    task = progress.add_task(cell.name, total=len(inputs), completed=len(inputs) - len(todo))
    turns = in_turn(made.contestants, bench, 1, todo if time.perf_counter() < deadline else [])
    for call, (name, runs) in enumerate(turns, start=2):
        kinds = {} if cell.temperature else agreements(bench, name, runs)
        store.put(name, {n: as_plain(run, kinds.get(n)) | {"call": call} for n, run in runs.items()})
        loads.append(load_average())
        progress.advance(task)
        if time.perf_counter() > deadline:
            break
    made.close()
    found = {name: store[name] for name in inputs if name in store}
    return {"prompts": found, "loads": loads, "left_out": made.left_out}


def batches(
    prompts: list[Prompt], before: list[Prompt], cell: Cell, tokenizer: Any
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Names and arguments of `generate` of the cell's batches, a prompt each where its size is one; `before`: texts for
    contexts."""
    for start in range(0, len(prompts) - cell.batch + 1, cell.batch):
        part = prompts[start : start + cell.batch]
        name = " | ".join(prompt.name for prompt in part)
        if cell.context is None:
            yield name, encode(tokenizer, part)
        else:
            ids = torch.tensor([lengthened(tokenizer, prompt, before, cell.context) for prompt in part])
            yield name, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


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
    options.add_argument("--spec-bench", **QUESTIONS)
    options.add_argument("--prompts", type=int, default=100, help="(default: %(default)s)")
    options.add_argument("--new-tokens", type=int, default=32, help="(default: %(default)s)")
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0], help="(default: 0 1)")
    options.add_argument("--batches", nargs="+", type=int, default=[1], metavar="ROWS", help="(default: 1)")
    options.add_argument("--contexts", nargs="+", type=int, default=[None], metavar="TOKENS")
    options.add_argument(
        "--busy", nargs="+", type=int, default=[0], metavar="PROCESSES", help="(default: 0) Linux only"
    )
    options.add_argument("--minutes", type=float, default=60.0, help="no prompt is begun later (default: %(default)s)")
    options.add_argument(
        "--drafters", nargs="*", default=[MERGED], metavar="NAME",
        help=f"head, warm, recycling, suffix, a trained head's or a draft model's folder; joined by + they are merged; "
        f"random drafts, with {AUTO} only; first calls of {MERGED} (default: {MERGED})",
    )  # fmt: skip
    default = ["chain-2", "chain-4", "tree-8", "tree-16", AUTO]
    options.add_argument("--shapes", nargs="*", default=default, choices=SHAPES, metavar="NAME", help=" ".join(SHAPES))
    options.add_argument(
        "--contestants", nargs="*", default=["lookup"], choices=[*OTHERS, "all"], metavar="NAME",
        help=f"besides plain decoding (default: lookup): all, or some of {' '.join(OTHERS)}",
    )  # fmt: skip
    options.add_argument("--draft-model", type=Path, help="a folder, for `assisted`")
    options.add_argument("--output", type=Path, default=RESULTS / "peers" / "peers.json")
    args = options.parse_args()
    if any(args.busy) and not hasattr(os, "sched_setaffinity"):
        options.error("--busy needs Linux, where a process can be bound to a core")
    args.contestants = list(OTHERS) if "all" in args.contestants else args.contestants
    return args


if __name__ == "__main__":
    main()
