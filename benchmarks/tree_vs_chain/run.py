"""Trees against chains: acceptance of every drafter with every policy, and wall-clock time of the best of them.

`acceptance` replays drafters along recorded texts of SmolLM2-135M (see `acceptance.py`): a measurement of what is
accepted, on any machine, whatever else runs there. `time` decodes prompts with every drafter's best chain and best tree
(see `wall_clock.py`), `contexts` by batch, context and temperature (see `contexts.py`); both want a quiet machine.
Finished prompts are kept in the user's cache folder: started again, a run goes on where it stopped. Results:
benchmarks/results/tree_vs_chain/tree_vs_chain.md and contexts.md, their pictures and raw numbers.

    python -m benchmarks.tree_vs_chain acceptance --spec-bench question.jsonl
    python -m benchmarks.tree_vs_chain time --spec-bench question.jsonl
    python -m benchmarks.tree_vs_chain contexts --threads 1 --spec-bench question.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.common import prompts
from benchmarks.common.drafters import DRAFTERS, fastest_head
from benchmarks.common.progress import progress_bar
from benchmarks.common.settings import RESULTS, load_average, parser, settings, write_json
from benchmarks.common.store import Store, digest
from benchmarks.tree_vs_chain import acceptance as tree_acceptance
from benchmarks.tree_vs_chain import cells as tree_cells
from benchmarks.tree_vs_chain import contexts as tree_contexts
from benchmarks.tree_vs_chain import contexts_report
from benchmarks.tree_vs_chain import report as tree_report
from benchmarks.tree_vs_chain import wall_clock as tree_time
from treespec import optimize
from treespec.hf.loading import smollm2
from treespec.hf.models.pass_times import pass_times

ACCEPTANCE, TIME, CONTEXTS = "acceptance", "time", "contexts"
NUM_MEASURING, NUM_PILOT = 4, 3


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    if args.part == CONTEXTS:
        contexts(args, console)
        return
    models = tree_cells.Models(*smollm2.load(say=console.print))
    sets = prompt_sets(args.spec_bench, (args.prompts, args.replayed, NUM_MEASURING, NUM_PILOT))
    cache = smollm2.converted_folder().parent / "tree_vs_chain"
    names = ("seed", "new_tokens", "replayed", "prompts")
    run, start = settings(**{name: getattr(args, name) for name in names}), time.perf_counter()
    data = {part: _known(args.folder, part) for part in (ACCEPTANCE, TIME)}
    with progress_bar(console) as progress:
        if args.part == ACCEPTANCE:
            found = tree_acceptance.measure(args, models, sets, cache, progress)
            found = tree_acceptance.merged(data[ACCEPTANCE], found)
        else:
            found = tree_time.measure(args, models, sets, cache, data[ACCEPTANCE], progress)
    run |= {"load_average_after": load_average(), "seconds": round(time.perf_counter() - start)}
    data[args.part] = found | {"run": run, "calls": [*data[args.part].get("calls", []), run]}
    write_json(args.folder / f"{args.part}.json", data[args.part])
    console.print(tree_report.write(data, args.folder), markup=False)


def contexts(args: argparse.Namespace, console: Console) -> None:
    """Cells that this run does not measure stay in the file."""
    model, tokenizer = smollm2.load(say=console.print)
    pool = prompt_sources(args.spec_bench)
    cache = smollm2.converted_folder().parent / "tree_vs_chain"
    run, start = settings(seed=args.seed, new_tokens=args.new_tokens), time.perf_counter()
    store = Store(cache / f"{digest(args.new_tokens, args.seed, args.threads, len(pool))}-contexts.jsonl")
    with optimize(model), progress_bar(console) as progress:
        pass_times(model, is_remeasured=True)  # Before anything is timed; what is kept may be a busier hour's.
        head = fastest_head(model)
        prompts = [prompt for source in pool for prompt in source]
        bench = tree_contexts.Bench(model, tokenizer, head, prompts, min(args.contexts))
        found = tree_contexts.measure(args, bench, store, progress)
    data = _known(args.folder, CONTEXTS)
    run |= {"load_average_after": load_average(), "seconds": round(time.perf_counter() - start)}
    data = {"cells": data.get("cells", {}) | found, "calls": [*data.get("calls", []), run]}
    write_json(args.folder / f"{CONTEXTS}.json", data)
    console.print(contexts_report.write(data, args.folder), markup=False)


def prompt_sources(spec_bench: Path | None) -> list[list[prompts.Prompt]]:
    sources = [prompts.human_eval(), prompts.gsm8k()]
    if spec_bench is not None:
        sources.append(prompts.by_turns(prompts.spec_bench(spec_bench).values()))
    return sources


def prompt_sets(spec_bench: Path | None, sizes: tuple[int, ...]) -> prompts.PromptSets:
    """Prompts to be timed, replayed, measured for Sequoia's tables, and tried out on: disjoint sets of all sources."""
    return prompts.disjoint_sets(prompt_sources(spec_bench), sizes)


def _known(folder: Path, part: str) -> dict[str, Any]:
    path = folder / f"{part}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _arguments() -> argparse.Namespace:
    options = parser("Trees against chains: acceptance and wall-clock time.", threads=2)
    options.add_argument("part", choices=[ACCEPTANCE, TIME, CONTEXTS])
    options.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl; without it two sources are used")
    options.add_argument("--prompts", type=int, default=60, help="timed prompts (default: %(default)s)")
    options.add_argument("--replayed", type=int, default=8, help="replayed prompts (default: %(default)s)")
    options.add_argument("--new-tokens", type=int, default=24)
    options.add_argument("--positions", type=int, default=4, help="positions per text for sampled children")
    known = {ACCEPTANCE: list(DRAFTERS), TIME: list(DRAFTERS), CONTEXTS: list(tree_contexts.DRAFTERS)}
    options.add_argument("--drafters", nargs="+", default=None, metavar="NAME", help=f"contexts: {known[CONTEXTS]}")
    options.add_argument("--contexts", nargs="+", type=int, default=[256, 1024, 4096], metavar="N")
    options.add_argument("--batches", nargs="+", type=int, choices=[1, 2, 4, 8], default=[1, 2, 4, 8])
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0], metavar="T")
    options.add_argument("--groups", type=int, default=6, help="contexts: at most so many of a cell (default: 6)")
    options.add_argument(
        "--measurements",
        nargs="+",
        choices=tree_acceptance.MEASUREMENTS,
        default=list(tree_acceptance.MEASUREMENTS),
        help="acceptance: all or some of them",
    )
    options.add_argument("--minutes", type=float, default=36.0, help="no prompt is begun later (default: 36)")
    options.add_argument("--folder", type=Path, default=RESULTS / "tree_vs_chain", help="for the results")
    args = options.parse_args()
    if unknown := set(args.drafters or ()) - set(known[args.part]):
        options.error(f"{args.part} has no drafters {sorted(unknown)}, but {known[args.part]}")
    return args
