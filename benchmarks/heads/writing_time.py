"""What the pages of growing caches cost in batched writing: CPU time of a step, by how memory is got from Linux.

A batch of texts is one token longer after every step, and its cache a new block of memory: most of the time may go to
page faults. Each setting runs in a process of its own, because the C library reads its settings when it starts.

    python -m benchmarks.heads.writing_time [--rows 64] [--length 300] [--steps 6]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import torch

from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec.hf import make_scorer
from treespec.hf.cpu import prepack_linears
from treespec.hf.loading import smollm2

LARGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
KEPT = {
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
ENVIRONMENTS = {"as it comes": {}, "large pages": LARGE_PAGES, "freed memory kept": KEPT, "both": LARGE_PAGES | KEPT}


@torch.no_grad()
def seconds_per_step(rows: int, length: int, steps: int) -> float:
    """CPU seconds of this process for one pass of a batch of texts of `length` tokens and more, one new token each."""
    model, _ = smollm2.load(say=lambda _: None)
    prepack_linears(model, rows)
    scorer = make_scorer(model)
    ids = torch.randint(0, 1000, (1, length), generator=torch.Generator().manual_seed(0))
    scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
    scorer.select_rows([0] * rows)
    begin = 0.0
    for step in range(steps + 1):
        if step == 1:
            begin = time.process_time()
        scorer.extend(torch.zeros(rows, 1, dtype=torch.int64), torch.full((rows, 1), -1))
        scorer.commit([[0]] * rows)
    return (time.process_time() - begin) / steps


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    if args.one:
        print(seconds_per_step(args.rows, args.length, args.steps))
        return
    data = settings(rows=args.rows, length=args.length, steps=args.steps)
    names = {name for environment in ENVIRONMENTS.values() for name in environment}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    sizes = [f"--{name}={getattr(args, name)}" for name in ("rows", "length", "steps")]
    found: dict[str, list[float]] = {name: [] for name in ENVIRONMENTS}
    for _ in range(args.rounds):
        for name, environment in ENVIRONMENTS.items():
            command = [sys.executable, "-m", "benchmarks.heads.writing_time", "--one", *sizes]
            done = subprocess.run(command, env=clean | environment, check=True, capture_output=True, text=True)
            found[name].append(float(done.stdout.split()[-1]))
    data |= {"seconds": found, "load_average_after": load_average()}
    write_json(RESULTS / "heads" / "writing_time.json", data)
    table = markdown_table(
        ["memory", "CPU seconds per step"],
        [[name, ", ".join(f"{value:.2f}" for value in values)] for name, values in found.items()],
    )
    what = f"{args.rows} texts of {args.length} tokens, one new token each, one thread; a number per round."
    load = f"Load average {data['load_average']} before, {data['load_average_after']} after. {settings_lines(data)}"
    text = f"# Batched writing and page faults\n\n{what}\n\n{table}\n{load}"
    (RESULTS / "heads" / "writing_time.md").write_text(text)
    print(text)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--rows", type=int, default=64)
    options.add_argument("--length", type=int, default=300)
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--one", action="store_true", help="measure in this process, as it was started")
    return options.parse_args()


if __name__ == "__main__":
    main()
