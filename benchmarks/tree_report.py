"""Tables and pictures of what `tree_vs_chain.py` measured, and its answers to what was claimed."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.drafters import EXIT_LAYERS, PARTS
from benchmarks.paired import Estimate, bootstrap, cross_fitted, difference, ratio
from benchmarks.settings import markdown_table, settings_lines
from benchmarks.tree_policies import BINARY, BUDGETS, CHAIN, FAMILIES, SAMPLED, SEQUOIA
from treespec.viz import ACCEPTED, GREY, INK, NEXT_EDGE, REFERENCE

Lengths = dict[str, dict[int, list[float]]]
"""Acceptance lengths by policy and drafted tokens, one number per prompt."""

SEQUOIA_BUDGETS = (8, 16, 32, 64)
AIM_WARM = 2.0


def lengths_of(cells: list[dict[str, dict[str, list[int]]]]) -> Lengths:
    """From counts per prompt: [tokens, steps] by policy and drafted tokens."""
    return {
        name: {n: [prompt[name][str(n)][0] / prompt[name][str(n)][1] for prompt in cells] for n in BUDGETS}
        for name in cells[0]
    }


def best_tree(lengths: Lengths, num_drafted: int) -> tuple[list[float], list[str]]:
    """The best policy, the chain among them, chosen on other prompts."""
    return cross_fitted({name: cells[num_drafted] for name, cells in lengths.items()})


def write(data: dict[str, dict[str, Any]], folder: Path) -> str:
    """The report and the pictures of all parts that were measured; returns the report."""
    lines = ["# Trees against chains", ""]
    if found := data["acceptance"]:
        lines += acceptance_lines(found)
        draw_acceptance(found, folder / "tree_vs_chain_acceptance.png")
    if (found := data["time"]) and any(found["runs"].values()):
        lines += time_lines(found)
        draw_time(found, folder / "tree_vs_chain_time.png")
    text = "\n".join(lines) + "\n"
    (folder / "tree_vs_chain.md").write_text(text)
    return text


def acceptance_lines(found: dict[str, Any]) -> list[str]:
    lines = [
        "## Acceptance length",
        "",
        _about_acceptance(found),
        "",
        "![Acceptance](tree_vs_chain_acceptance.png)",
        "",
    ]
    lines += ["### What was claimed", "", *claim_lines(found), ""]
    for key, drafters in found["selected"].items():
        lines += [f"### Best tree beside the chain, {key}", "", _ABOUT_BEST, ""]
        lines += [best_table({name: lengths_of(cells) for name, cells in drafters.items()})]
    if found.get("sampled"):
        lines += ["### Sampled children beside selected ones, T=1", "", _ABOUT_SAMPLED, "", sampled_table(found)]
    for key, drafters in found["selected"].items():
        lines += [f"### Every policy, {key}", "", policy_table(drafters)]
    return [*lines, *map(_run_text, found["calls"])]


def claim_lines(found: dict[str, Any]) -> list[str]:
    """One sentence per claim, made of the numbers."""
    below, count = [], 0
    for key, drafters in found["selected"].items():
        for name, cells in drafters.items():
            lengths = lengths_of(cells)
            for n in BUDGETS[1:]:
                count += 1
                gain = difference(best_tree(lengths, n)[0], lengths[CHAIN][n])
                if gain.high < 0:
                    below.append(f"{name}, {key}, {n} nodes: {gain.text(sign='+')}")
    said = "never" if not below else f"in {len(below)} cells ({'; '.join(below)})"
    lines = [
        "- Best tree (the chain among its candidates, chosen on other prompts) below the chain of as "
        f"many nodes beyond paired noise: {said}, of {count} cells of drafter, temperature and size."
    ]
    gains = sequoia_gains(found)
    wins = sum(gain.value > 0 for gain in gains.values())
    sure = sum(gain.low > 0 for gain in gains.values())
    lost = [f"{name} {gain.text(sign='+')}" for name, gain in gains.items() if gain.high < 0]
    sizes = ", ".join(map(str, SEQUOIA_BUDGETS))
    below_text = f"below beyond noise in {'; '.join(lost)}" if lost else "nowhere below beyond noise"
    lines.append(
        "- Sequoia's tree, from acceptance recorded on other prompts, against the complete binary tree of the same "
        f"size ({sizes} nodes): higher in {wins} of {len(gains)} cells, beyond noise in {sure}, {below_text}."
    )
    lines += merge_claim(found)
    for name, values in found.get("warm", {}).items():
        mean = bootstrap(values)
        verdict = "at least" if mean.value >= AIM_WARM else "below"
        lines.append(
            f"- {name}, best-first trees of 24 nodes (root included), T=0, {len(values)} prompts: "
            f"{mean.text()}, {verdict} {AIM_WARM}."
        )
    return lines


def merge_claim(found: dict[str, Any]) -> list[str]:
    """Where a merged drafter is worse than one of its parts, each with its best policy of as many nodes."""
    count, below, above = 0, [], 0
    for key, drafters in found["selected"].items():
        for name, parts in PARTS.items():
            if not {name, *parts} <= set(drafters):
                continue
            merged = lengths_of(drafters[name])
            for part in parts:
                alone = lengths_of(drafters[part])
                for n in BUDGETS:
                    gain = difference(best_tree(merged, n)[0], best_tree(alone, n)[0])
                    count, above = count + 1, above + (gain.low > 0)
                    if gain.high < 0:
                        below.append(f"{name} below {part}, {key}, {n} nodes: {gain.text(sign='+')}")
    if not count:
        return []
    said = f"in {len(below)} ({'; '.join(below)})" if below else "in none"
    return [
        "- Merged drafters against each of their parts, both with the best policy chosen on other prompts: better "
        f"beyond paired noise in {above} of {count} cells, worse beyond it {said}."
    ]


def sequoia_gains(found: dict[str, Any]) -> dict[str, Estimate]:
    """Sequoia's tree minus the complete binary one, paired, by drafter, temperature and size."""
    gains = {}
    for key, drafters in found["selected"].items():
        for name, cells in drafters.items():
            lengths = lengths_of(cells)
            for n in SEQUOIA_BUDGETS:
                gains[f"{name}, {key}, {n} nodes"] = difference(lengths[SEQUOIA][n], lengths[BINARY][n])
    return gains


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
        for family, by_size in lengths_of(cells).items():
            rows.append([name if family == CHAIN else "", family, *(f"{fmean(by_size[n]):.2f}" for n in BUDGETS)])
    return markdown_table(["drafter", "policy", *map(str, BUDGETS)], rows)


def sampled_table(found: dict[str, Any]) -> str:
    """Means over prompts; in brackets the mean paired difference to the selected chain's."""
    rows = []
    for name, cells in found["sampled"].items():
        for family in cells[0]:
            kind = "sampled" if family in SAMPLED else "selected"
            texts = []
            for n in BUDGETS:
                values, chain = ([prompt[f][str(n)] for prompt in cells] for f in (family, CHAIN))
                gain = "" if family == CHAIN else f" ({difference(values, chain).value:+.2f})"
                texts.append(f"{fmean(values):.2f}{gain}")
            rows.append([name, family, kind, *texts])
    return markdown_table(["drafter", "policy", "children", *map(str, BUDGETS)], rows)


def time_lines(found: dict[str, Any]) -> list[str]:
    lines = ["## Wall-clock time", "", _about_time(found), "", "![Time](tree_vs_chain_time.png)", ""]
    for size, runs in found["runs"].items():
        if runs:
            lines += [f"### Batch {size}, {len(runs)} paired runs", "", time_table(runs, found["chosen"][size])]
    return [*lines, *map(_run_text, found["calls"])]


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


def _short(name: str) -> str:
    return name.rsplit(": ", 1)[-1]


def draw_acceptance(found: dict[str, Any], path: Path) -> Figure:
    """One plot per drafter and temperature: acceptance length against drafted tokens."""
    keys, names = list(found["selected"]), list(next(iter(found["selected"].values())))
    figure = Figure(figsize=(2.6 * len(names), 2.9 * len(keys) + 0.6), dpi=130, facecolor="white")
    axes = figure.subplots(len(keys), len(names), squeeze=False, sharex=True)
    for row, key in enumerate(keys):
        for column, name in enumerate(names):
            _draw_lengths(axes[row][column], lengths_of(found["selected"][key][name]))
            axes[row][column].set_title(f"{name}\n{key}" if row == 0 else key, fontsize=8, color=GREY, loc="left")
    for plot in axes[-1]:
        plot.set_xlabel("nodes below the root", fontsize=8, color=GREY)
    axes[0][0].legend(fontsize=6.5, frameon=False)
    figure.suptitle("Acceptance length: trees and chains", x=0.01, ha="left", fontsize=12, color=INK, weight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path)
    return figure


def _draw_lengths(axes: Axes, lengths: Lengths) -> None:
    for family in lengths:
        if family not in (CHAIN, SEQUOIA, BINARY):
            axes.plot(BUDGETS, [fmean(lengths[family][n]) for n in BUDGETS], color="#d5dce2", linewidth=0.8, zorder=1)
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
    for family, colour in ((BINARY, INK), (SEQUOIA, NEXT_EDGE)):
        means = [fmean(lengths[family][n]) for n in BUDGETS]
        axes.plot(BUDGETS, means, color=colour, linestyle=":", label=family, zorder=2)
    axes.plot(BUDGETS, [fmean(v) for v in best], color=ACCEPTED, marker="o", markersize=3, label="best tree", zorder=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(BUDGETS, [str(n) for n in BUDGETS])
    _plain_axes(axes)


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
        _plain_axes(plot)
    figure.suptitle("Wall-clock time per token", x=0.01, ha="left", fontsize=12, color=INK, weight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    figure.savefig(path)
    return figure


def _plain_axes(axes: Axes) -> None:
    axes.grid(color="#e6eaed", linewidth=0.8)
    axes.tick_params(length=0, labelsize=7.5, colors=INK)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _about_acceptance(found: dict[str, Any]) -> str:
    run, names = found["run"], found["prompts"]
    return (
        f"Emitted tokens per target pass, means over prompts ({', '.join(names)}), {run['new_tokens']} "
        f"tokens each. {_ABOUT_REPLAY} Policies: {', '.join(FAMILIES)}; Sequoia's tables come from other prompts. "
        "Intervals: 95 %, bootstrap over prompts."
    )


_ABOUT_REPLAY = (
    "Sizes count the nodes below the root. The engine's loop is replayed along texts of the target (greedy at T=0, "
    "one sample per prompt at T=1): with selected children and the target walk this accepts what it would have "
    "accepted when the text was written. Drafters are fresh for every prompt: cold ones know nothing, warm ones what "
    "ships with treespec. The draft model is SmolLM2 without three of its thirty layers, early exit its first "
    f"{EXIT_LAYERS} layers and its own head; neither was trained for it. There are no trained Medusa heads for this "
    "model."
)
_ABOUT_BEST = (
    "The best tree is chosen among all policies, the chain included, by the other prompts (at most four folds), so "
    "its gain is free of hindsight; the gain is paired."
)
_ABOUT_SAMPLED = (
    "Expected tokens per pass at evenly spaced places of the sampled texts, exact in the coins of the default rule "
    "(traversal for sampled children, target walk for selected ones), one drafted tree per place; in brackets the "
    "paired difference to the selected chain. Sampled chains end at 16 tokens."
)
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


def _run_text(run: dict[str, Any]) -> str:
    load = f"load {run['load_average']} before, {run['load_average_after']} after"
    return f"{run['seconds']} s in this call, {load}, seed {run['seed']}. {settings_lines(run)}"
