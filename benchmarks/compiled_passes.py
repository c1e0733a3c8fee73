"""Milliseconds of one target pass over n nodes: from a growing cache, and through `torch.compile` from a static one.

What `TreeSpeculation(compile="auto")` measures, over more numbers: the linear layers are those of `treespec.optimize`
on both sides, whose native products are operators in compiled graphs. A text fills half of the static cache's slots.
Rounds are paired.

    python -m benchmarks.compiled_passes [--threads 1] [--rounds 21]

Medians, quartiles and all raw times are written to benchmarks/results/compiled_passes.{json,md}.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from rich.progress import track
from transformers import PreTrainedModel

import treespec
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
from treespec.hf.devices.weights import pack_weights
from treespec.hf.loading import smollm2
from treespec.hf.models.compiled_target import compiled_scorer
from treespec.hf.models.pass_times import time_pass

NUM_NODES = (1, 8, 16)
SLOTS = (256, 1024)
OPTIONS: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": {"options": {"freezing": True}}}


@torch.no_grad()
def measure(model: PreTrainedModel, options: dict[str, Any], num_rounds: int) -> list[dict[str, Any]]:
    """Per number of slots and of nodes: seconds of the first compiled pass, milliseconds of both sides' passes."""
    found = []
    with treespec.optimize(model):
        pack_weights(model)
        for slots in SLOTS:
            scorers = [make_scorer(model), compiled_scorer(model, slots, options)]
            ids = torch.full((1, slots // 2), 7)
            for scorer in scorers:
                scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
            for nodes in track(NUM_NODES, description=f"{model.dtype}, {slots} slots"):
                start = time.perf_counter()
                time_pass(scorers[1], nodes)
                row: dict[str, Any] = {"slots": slots, "nodes": nodes, "first_s": time.perf_counter() - start}
                time_pass(scorers[0], nodes)
                rounds = [[1e3 * time_pass(scorer, nodes) for scorer in scorers] for _ in range(num_rounds)]
                found.append(row | {"plain_ms": [a for a, _ in rounds], "compiled_ms": [b for _, b in rounds]})
    return found


def report(data: dict) -> str:
    rows = []
    for dtype, found in data["dtypes"].items():
        for row in found:
            ratios = [a / b for a, b in zip(row["plain_ms"], row["compiled_ms"], strict=True)]
            times = [quartiles(row["plain_ms"], 1), quartiles(row["compiled_ms"], 1), quartiles(ratios, 2)]
            rows.append([dtype, f"{row['slots']}", f"{row['nodes']}", *times, f"{row['first_s']:.0f}"])
    header = ["dtype", "slots", "nodes", "growing cache, ms", "compiled, ms", "ratio", "first pass, s"]
    return (
        f"# Compiled passes of {smollm2.NAME}\n\nMedians (quartiles) of {data['num_rounds']} paired rounds. Load "
        f"average {data['load_average']} before, {data['load_average_after']} after. The first pass compiles, or reads "
        f"what an earlier run compiled from PyTorch's cache.\n\n{markdown_table(header, rows)}\n{settings_lines(data)}"
    )


def quartiles(values: list[float], digits: int) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=int, default=21)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    data = settings(seed=args.seed, num_rounds=args.rounds, dtypes={})
    model, _ = smollm2.load()
    for name, compile_options in OPTIONS.items():
        model = model.to(dtype=getattr(torch, name))  # pyright: ignore[reportCallIssue]
        data["dtypes"][name] = measure(model, compile_options, args.rounds)
    data["load_average_after"] = load_average()
    write_json(RESULTS / "compiled_passes.json", data)
    (RESULTS / "compiled_passes.md").write_text(report(data))
    print(report(data))


if __name__ == "__main__":
    main()
