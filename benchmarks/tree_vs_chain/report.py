"""Tables and pictures of what `benchmarks.tree_vs_chain` measured, and its answers to what was claimed."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common.settings import markdown_table, settings_lines
from benchmarks.tree_vs_chain.claims import Lengths, best_tree, claim_lines, lengths_of
from benchmarks.tree_vs_chain.policies import BINARY, BUDGETS, CHAIN, POLICIES, SEQUOIA
from treespec.lab.measure.estimates import difference
from treespec.viz import ACCEPTED, INK, NEXT_EDGE, REFERENCE
from treespec.viz.trees import headed, plain_axes


def write(found: dict[str, Any], folder: Path) -> str:
    """The report and the picture; returns the report."""
    text = "\n".join(["# Trees against chains", "", *acceptance_lines(found)]) + "\n"
    draw_acceptance(found, folder / "acceptance.png")
    (folder / "tree_vs_chain.md").write_text(text)
    return text


def acceptance_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        "## Acceptance length",
        "",
        _about_acceptance(found),
        "",
        "![Acceptance](acceptance.png)",
        "",
    ]
    lines += ["### What was claimed", "", *claim_lines(found), ""]
    for key, drafters in found["selected"].items():
        lines += [f"### Best tree against the chain, {key}", "", _ABOUT_BEST, ""]
        lines += [best_table({name: lengths_of(cells) for name, cells in drafters.items()})]
    for key, drafters in found["selected"].items():
        lines += [f"### Every policy, {key}", "", policy_table(drafters)]
    return [*lines, *map(run_text, found["calls"])]


def best_table(drafters: dict[str, Lengths]) -> str:
    """Rows: drafter; columns: sizes; the chain, the best tree, and the paired gain."""
    rows = []
    for name, lengths in drafters.items():
        count = f"{name} ({len(lengths[CHAIN][1])} prompts)"
        rows.append([count, CHAIN, *(f"{fmean(lengths[CHAIN][n]):.2f}" for n in BUDGETS)])
        best = {n: best_tree(lengths, n) for n in BUDGETS}
        rows.append(["", "best tree", *(f"{fmean(best[n][0]):.2f}" for n in BUDGETS)])
        rows.append(["", "gain", *(difference(best[n][0], lengths[CHAIN][n]).text(sign="+") for n in BUDGETS)])
        rows.append(["", "chosen", *(" / ".join(dict.fromkeys(best[n][1])) if n > 1 else "" for n in BUDGETS)])
    return markdown_table(["drafter", "", *map(str, BUDGETS)], rows)


def policy_table(drafters: dict[str, list[Any]]) -> str:
    rows = []
    for name, cells in drafters.items():
        for policy, by_size in lengths_of(cells).items():
            rows.append([name if policy == CHAIN else "", policy, *(f"{fmean(by_size[n]):.2f}" for n in BUDGETS)])
    return markdown_table(["drafter", "policy", *map(str, BUDGETS)], rows)


def draw_acceptance(found: dict[str, Any], path: Path) -> Figure:
    """One plot per drafter and temperature: acceptance length against drafted tokens."""
    keys, names = list(found["selected"]), list(next(iter(found["selected"].values())))
    figure = Figure(figsize=(2.6 * len(names), 2.9 * len(keys) + 0.6), dpi=130, facecolor="white")
    axes = figure.subplots(len(keys), len(names), squeeze=False, sharex=True)
    for row, key in enumerate(keys):
        for column, name in enumerate(names):
            _draw_lengths(axes[row][column], lengths_of(found["selected"][key][name]))
            label = "nodes below the root" if row == len(keys) - 1 else ""
            plain_axes(axes[row][column], f"{name}\n{key}" if row == 0 else key, label, size=7.5)
    axes[0][0].legend(fontsize=6.5, frameon=False)
    headed(figure, "Acceptance length: trees and chains")
    figure.savefig(path)
    return figure


def _draw_lengths(axes: Axes, lengths: Lengths) -> None:
    for policy in lengths:
        if policy not in (CHAIN, SEQUOIA, BINARY):
            axes.plot(BUDGETS, [fmean(lengths[policy][n]) for n in BUDGETS], color="#d5dce2", linewidth=0.8, zorder=1)
    best = [best_tree(lengths, n)[0] for n in BUDGETS]
    gains = [difference(values, lengths[CHAIN][n]) for values, n in zip(best, BUDGETS, strict=True)]
    chain = np.array([fmean(lengths[CHAIN][n]) for n in BUDGETS])
    axes.fill_between(
        BUDGETS,
        chain + [g.low for g in gains],
        chain + [g.high for g in gains],
        color=ACCEPTED,
        alpha=0.15,
        linewidth=0,
    )
    axes.plot(BUDGETS, chain, color=REFERENCE, marker="o", markersize=3, label="chain", zorder=3)
    for policy, colour in ((BINARY, INK), (SEQUOIA, NEXT_EDGE)):
        means = [fmean(lengths[policy][n]) for n in BUDGETS]
        axes.plot(BUDGETS, means, color=colour, linestyle=":", label=policy, zorder=2)
    axes.plot(BUDGETS, [fmean(v) for v in best], color=ACCEPTED, marker="o", markersize=3, label="best tree", zorder=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(BUDGETS, [str(n) for n in BUDGETS])
    axes.grid(color="#e6eaed", linewidth=0.8)


def run_text(run: dict[str, Any]) -> str:
    """A call's settings, time and load."""
    load = f"load {run['load_average']} before, {run['load_average_after']} after"
    return f"{run['seconds']} s in this call, {load}, seed {run['seed']}. {settings_lines(run)}"


def _about_acceptance(found: dict[str, Any]) -> str:
    run, names = found["run"], found["prompts"]
    return (
        f"Emitted tokens per target pass, means over prompts ({', '.join(names)}), {run['new_tokens']} "
        f"tokens each. {_ABOUT_REPLAY} Policies: {', '.join(POLICIES)}; Sequoia's tables come from other prompts. "
        "Intervals: 95 %, bootstrap over prompts."
    )


_ABOUT_REPLAY = (
    "Sizes count the nodes below the root. The engine's loop is replayed along texts of the target (greedy at T=0, "
    "one sample per prompt at T=1): with selected children and the target walk this accepts what it would have "
    "accepted when the text was written. Drafters are fresh for every prompt: cold ones start empty, warm ones from "
    "what ships with treespec, warm merges also with weights of their parts, learned along the texts of Sequoia's "
    "tables. The draft model is SmolLM2 without three of its thirty layers, not trained for it."
)
_ABOUT_BEST = (
    "The best tree is chosen among all policies, the chain included, by the other prompts (at most four folds), so "
    "its gain is free of hindsight; the gain is paired."
)
