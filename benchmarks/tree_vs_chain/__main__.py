"""Trees against chains: acceptance of every drafter with every policy.

Drafters are replayed along recorded texts of SmolLM2-135M (see `acceptance.py`): a measurement of what is accepted, on
any machine, whatever else runs there; `benchmarks.peers` measures times. Finished prompts are kept in the user's cache
folder: started again, a run goes on where it stopped. Results: benchmarks/results/tree_vs_chain/tree_vs_chain.md and
its raw numbers.

    python -m benchmarks.tree_vs_chain acceptance --spec-bench question.jsonl
"""

import argparse
import json
import time
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.common.drafters import DRAFTERS
from benchmarks.common.prompts import QUESTIONS, held_out
from benchmarks.common.settings import RESULTS, load_average, parser, settings, write_json
from benchmarks.tree_vs_chain import acceptance, report
from benchmarks.tree_vs_chain.cells import Models
from treespec.commands.console import progress_bar
from treespec.lab import smollm2

NUM_MEASURING = 4


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    models = Models(*smollm2.load(say=console.print))
    chosen = held_out(args.spec_bench, args.replayed + NUM_MEASURING)
    sets = acceptance.PromptSets(chosen[: args.replayed], chosen[args.replayed :])
    names = ("seed", "new_tokens", "replayed")
    run, start = settings(**{name: getattr(args, name) for name in names}), time.perf_counter()
    file = args.folder / "tree_vs_chain.json"
    known = json.loads(file.read_text()) if file.is_file() else {}
    with progress_bar(console) as progress:
        cache = smollm2.converted_folder().parent / "tree_vs_chain"
        found = acceptance.merged(known, acceptance.measure(args, models, sets, cache, progress))
    run |= {"load_average_after": load_average(), "seconds": round(time.perf_counter() - start)}
    found |= {"run": run, "calls": [*known.get("calls", []), run]}
    write_json(file, found)
    console.print(report.write(found, args.folder), markup=False)


def _arguments() -> argparse.Namespace:
    options = parser("Trees against chains: acceptance.", threads=2)
    options.add_argument("part", choices=["acceptance"])
    options.add_argument("--spec-bench", **QUESTIONS)
    options.add_argument("--replayed", type=int, default=8, help="replayed prompts (default: %(default)s)")
    options.add_argument("--new-tokens", type=int, default=24)
    options.add_argument("--drafters", nargs="+", default=None, choices=list(DRAFTERS), metavar="NAME")
    options.add_argument("--minutes", type=float, default=36.0, help="no prompt is begun later (default: 36)")
    options.add_argument("--folder", type=Path, default=RESULTS / "tree_vs_chain", help="for the results")
    return options.parse_args()


if __name__ == "__main__":
    main()
