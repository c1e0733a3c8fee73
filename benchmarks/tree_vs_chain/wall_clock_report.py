"""What `benchmarks.tree_vs_chain time` measured, as tables and a picture."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.estimates import ratio
from benchmarks.common.settings import markdown_table
from benchmarks.tree_vs_chain.policies import CHAIN
from benchmarks.tree_vs_chain.style import plain_axes, run_text
from treespec.lab.measure.estimates import bootstrap
from treespec.viz import ACCEPTED, GREY, INK, NEXT_EDGE, REFERENCE


def time_lines(found: dict[str, Any]) -> list[str]:
    lines = ["## Wall-clock time", "", _about_time(found), "", "![Time](time.png)", ""]
    for size, runs in found["runs"].items():
        if runs:
            lines += [f"### Batch {size}, {len(runs)} paired runs", "", time_table(runs, found["chosen"][size])]
            lines += [
                "The pilot: milliseconds per token, means over its prompts.",
                "",
                pilot_table(found["pilot"][size]),
            ]
    return [*lines, *map(run_text, found["calls"])]


def ms_per_token(runs: dict[str, Any], name: str) -> list[float]:
    """One number per prompt or batch of them."""
    return [1e3 * run[name]["seconds"] / run[name]["tokens"] for run in runs.values()]


def time_table(runs: dict[str, Any], chosen: dict[str, Any]) -> str:
    """Rows: contestants; medians over prompts with intervals; speed as the median of paired ratios."""
    names = list(next(iter(runs.values())))
    plain = ms_per_token(runs, names[0])
    rows = []
    for name in names:
        mine = ms_per_token(runs, name)
        found = [run[name] for run in runs.values()]
        num_identical = sum(run["identical"] for run in found)
        num_tied = sum(run["right"] for run in found) - num_identical
        num_wrong = sum(run["rows"] - run["right"] for run in found)
        accepted = [run["acceptance_length"] for run in found if run["acceptance_length"] is not None]
        rows.append(
            [
                name,
                bootstrap(mine, np.median).text(1),
                ratio(plain, mine).text(),
                f"{fmean(accepted):.2f}" if accepted else "",
                f"{num_identical} + {num_tied} tied" + (f", {num_wrong} WRONG" if num_wrong else ""),
            ]
        )
    table = markdown_table(["", "ms per token", "speed against plain", "acceptance length", "identical outputs"], rows)
    pairs = []
    for drafter, by_budget in chosen.items():
        for budget, kinds in by_budget.items():
            gain = ratio(ms_per_token(runs, kinds["chain"]), ms_per_token(runs, kinds["tree"]))
            best = "tree" if kinds["best"] == kinds["tree"] else "chain"
            pairs.append([drafter, budget, _short(kinds["chain"]), _short(kinds["tree"]), gain.text(), best])
    header = [
        "drafter",
        "nodes at most",
        "best chain",
        "best tree",
        "speed of tree against chain",
        "the pilot's choice",
    ]
    return table + "\n" + markdown_table(header, pairs)


def pilot_table(tried: dict[str, list[dict[str, float]]]) -> str:
    """Rows: drafters; columns: chains and trees by their size, the policy of a tree named."""
    rows, sizes = [], []
    for drafter, groups in tried.items():
        cells = {_short(name): 1e3 * fmean(group[name] for group in groups) for name in groups[0]}
        sizes = [_sized(name) for name in cells]
        policies = ", ".join(dict.fromkeys(name.rsplit(" of ", 1)[0] for name in cells if not name.startswith(CHAIN)))
        rows.append([drafter, *(f"{value:.1f}" for value in cells.values()), policies])
    return markdown_table(["drafter", *sizes, "the trees' policy"], rows)


def _sized(name: str) -> str:
    """`chain of 4`, or the size alone of a tree whose policy is any."""
    policy, size = name.rsplit(" of ", 1)
    return name if policy == CHAIN else f"tree of {size}"


def _short(name: str) -> str:
    return name.rsplit(": ", 1)[-1]


def draw_time(found: dict[str, Any], path: Path) -> Figure:
    """Medians with intervals, one plot per batch size."""
    sizes = [size for size, runs in found["runs"].items() if runs]
    names = {size: list(next(iter(found["runs"][size].values()))) for size in sizes}
    height = 1.2 + 0.3 * max(map(len, names.values()))
    figure = Figure(figsize=(7.5 * len(sizes), height), dpi=130, facecolor="white")
    plots = figure.subplots(1, len(sizes), squeeze=False)[0]
    for plot, size in zip(plots, sizes, strict=True):
        runs = found["runs"][size]
        medians = [bootstrap(ms_per_token(runs, name), np.median) for name in names[size]]
        for number, (name, estimate) in enumerate(zip(names[size], medians, strict=True)):
            is_chain = f": {CHAIN} of" in name
            colour = REFERENCE if ": " not in name else NEXT_EDGE if is_chain else ACCEPTED
            plot.plot([estimate.low, estimate.high], [number, number], color=colour, linewidth=2.2, alpha=0.6)
            plot.plot([estimate.value], [number], "o", color=colour, markersize=5)
        plot.axvline(medians[0].value, color=REFERENCE, linewidth=0.8, linestyle=":")
        plot.set_yticks(range(len(names[size])), names[size])
        plot.invert_yaxis()
        plot.set_xlim(left=0)
        plot.set_title(f"batch {size}: ms per token, median and 95 % interval", fontsize=9, color=GREY, loc="left")
        plain_axes(plot)
    figure.suptitle("Wall-clock time per token", x=0.01, ha="left", fontsize=12, color=INK, weight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    figure.savefig(path)
    return figure


_ABOUT_TIMES = (
    "Linear layers are packed for all contestants, and each gets a cache with the prompt in it: reading the prompt "
    "is not counted. Paired: every prompt is decoded by all contestants, in rotating order. Chains and trees (at "
    "most 8, and at most 32 nodes below the root) are the fastest of a pilot on other prompts. Medians over prompts "
    "(or batches) with 95 % bootstrap intervals; speed: median of paired ratios. Tied outputs part from plain where "
    "its top two logits lie within 1e-4."
)


def _about_time(found: dict[str, Any]) -> str:
    run, loads = found["run"], found["loads"]
    load = f"Load average during the run: {min(loads)} to {max(loads)}."
    return f"Greedy decoding of {run['new_tokens']} new tokens. {_ABOUT_TIMES} {load}"
