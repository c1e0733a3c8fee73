"""Models x prompts x adapters x weights x constraints, tiny models, real packages: identical, refused or explained.

Every cell decodes greedily by trees and by plain `generate`. Where the texts differ, plain's gap between the two best
scores at the first difference is compared with what plain itself makes of embeddings that are changed in their last
bits: within twice that it is the model's own tie, else the run fails. What a package or plain `generate` cannot do
counts apart. Of every model with every adapter and weights `--cells` of the pairs of prompt and constraint are run,
dealt out in turns; 0 runs all.

    python -m benchmarks.matrix --threads 1

Results: benchmarks/results/matrix/.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.common.settings import RESULTS, load_average, parser, settings, write_json
from benchmarks.matrix.cells import DIFFERENT, Cell, Outcome, choose, installed, run_group
from benchmarks.matrix.report import picture, report


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    axes = installed()
    groups = choose(axes, args.cells or None, args.seed)
    kept = args.output.with_suffix(".partial.jsonl")
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    done = {tuple(group) for group, _ in known}
    with tempfile.TemporaryDirectory() as folder, kept.open("a") as file:
        for number, (group, cells) in enumerate(groups.items()):
            if group in done:
                continue
            found = [[list(cell), list(outcome)] for cell, outcome in run_group(group, cells, Path(folder))]
            known.append([list(group), found])
            file.write(json.dumps(known[-1]) + "\n")
            file.flush()
            print(f"{number + 1} of {len(groups)}", *group, {outcome[0] for _, outcome in found}, flush=True)
    outcomes = {Cell(*cell): Outcome(*outcome) for _, found in known for cell, outcome in found}
    data = settings(seed=args.seed, cells_per_model=args.cells, load_average_after=load_average())
    write_json(args.output, data | {"cells": [[*cell, *outcome] for cell, outcome in outcomes.items()]})
    args.output.with_suffix(".md").write_text(report(outcomes, data))
    picture(outcomes, args.output.with_suffix(".png"))
    kept.unlink()
    sys.exit(any(outcome.word == DIFFERENT for outcome in outcomes.values()))


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--cells", type=int, default=1, help="of every model with its adapter and weights; 0: all")
    options.add_argument("--output", type=Path, default=RESULTS / "matrix" / "matrix.json")
    return options.parse_args()


if __name__ == "__main__":
    main()
