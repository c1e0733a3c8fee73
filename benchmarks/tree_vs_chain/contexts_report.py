"""What `benchmarks.tree_vs_chain contexts` measured, as tables and a picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.estimates import ratio
from benchmarks.common.settings import markdown_table
from benchmarks.peers.report import category
from benchmarks.tree_vs_chain.contexts import AUTO, DRAFTERS, GROWING, PLAIN
from benchmarks.tree_vs_chain.style import plain_axes, run_text
from treespec.lab.measure.estimates import Estimate, bootstrap
from treespec.viz import GREY, INK, REFERENCE

Runs = dict[str, dict[str, Any]]
"""By group of rows and contestant."""
COLOURS = {1: "#1b6ca8", 2: "#2a9d8f", 4: "#e09f3e", 8: "#b23a48"}


def write(data: dict[str, Any], folder: Path) -> str:
    """The report and the picture; returns the report."""
    found = sorted(data["cells"].values(), key=lambda cell: (cell["temperature"], cell["batch"], cell["context"]))
    lines = ["# Speed by context, batch and temperature", "", ABOUT, "", "![Speed](contexts.png)", ""]
    for temperature in dict.fromkeys(cell["temperature"] for cell in found):
        mine = [cell for cell in found if cell["temperature"] == temperature]
        lines += [f"## T = {temperature:g}", "", plain_table(mine)]
        for drafter in DRAFTERS:
            if has := [cell for cell in mine if drafter in drafters(cell)]:
                lines += [f"### {drafter.capitalize()}", "", table(has, drafter)]
        lines += category_lines([cell for cell in mine if cell["batch"] == 1])
    loads = [load for cell in found for load in cell["loads"]]
    if found:
        lines += [f"Load average during the runs: {min(loads)} to {max(loads)}.", ""]
        draw(found, folder / "contexts.png")
    text = "\n".join([*lines, *map(run_text, data["calls"])]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "contexts.md").write_text(text)
    return text


def drafters(cell: dict[str, Any]) -> list[str]:
    names = next(iter(cell["runs"].values()))
    return [name for name in DRAFTERS if f"{name}, {AUTO}" in names]


def ms(runs: Runs, name: str) -> list[float]:
    """Milliseconds per token, one number per group."""
    return [1e3 * run[name]["seconds"] / run[name]["tokens"] for run in runs.values()]


def best(runs: Runs, drafter: str, kind: str) -> str:
    """The chain or the tree that is fastest on average over the groups, in hindsight."""
    names = [name for name in next(iter(runs.values())) if name.startswith(f"{drafter}, {kind}")]
    return min(names, key=lambda name: fmean(ms(runs, name)))


def plain_table(found: list[dict[str, Any]]) -> str:
    rows = []
    for cell in found:
        plain, growing = (ms(cell["runs"], name) for name in (PLAIN, GROWING))
        rows.append(
            [*_head(cell), _text(bootstrap(plain, np.median), 1), _text(ratio(plain, growing)), _outputs(cell, GROWING)]
        )
    header = ["batch", "context", "groups", "plain, ms per token", "with a growing cache, times plain", "outputs"]
    return markdown_table(header, rows)


def table(found: list[dict[str, Any]], drafter: str) -> str:
    """A row per batch and context."""
    rows = []
    for cell in found:
        runs, auto = cell["runs"], f"{drafter}, {AUTO}"
        chain, tree = (best(runs, drafter, kind) for kind in ("chain", "tree"))
        plain, speeds = ms(runs, PLAIN), []
        for name in (chain, tree):
            size = name.rsplit(" ", 1)[1]
            speeds.append(f"{_text(ratio(plain, ms(runs, name)))}, {size}")
        rows.append(
            [
                *_head(cell),
                *speeds,
                *(_text(ratio(other, ms(runs, auto))) for other in (plain, ms(runs, GROWING), ms(runs, chain))),
                chosen(runs, auto),
                _outputs(cell, *(name for name in next(iter(runs.values())) if name.startswith(f"{drafter}, "))),
            ]
        )
    header = ["batch", "context", "groups", "best chain, times plain, its nodes", "best tree", "auto, times plain"]
    header += ["auto against plain with a growing cache", "auto against the chain", "auto's choices", "outputs"]
    return markdown_table(header, rows)


def chosen(runs: Runs, name: str) -> str:
    """What control took most often, as shares of the steps."""
    count: Counter[str] = Counter()
    for run in runs.values():
        count.update(run[name].get("choices", {}))
    return ", ".join(f"{choice} {number / count.total():.0%}" for choice, number in count.most_common(2))


def category_lines(found: list[dict[str, Any]]) -> list[str]:
    """Single rows by the category of their prompt, contexts together: auto times plain."""
    rows = []
    for kind in dict.fromkeys(category(name) for cell in found for name in cell["runs"]):
        texts, count = [], 0
        for drafter in DRAFTERS:
            mine = [
                run
                for cell in found
                if drafter in drafters(cell)
                for name, run in cell["runs"].items()
                if category(name) == kind
            ]
            runs, count = {str(number): run for number, run in enumerate(mine)}, max(count, len(mine))
            texts.append(_text(ratio(ms(runs, PLAIN), ms(runs, f"{drafter}, {AUTO}"))) if mine else "")
        rows.append([kind, str(count), *texts])
    if not rows:
        return []
    title = "Single rows by category, all contexts together: `auto`, times plain."
    return [title, "", markdown_table(["category", "runs at most", *DRAFTERS], rows)]


def draw(found: list[dict[str, Any]], path: Path) -> Figure:
    """A plot per temperature and drafter: speed against plain over the context, a line per batch."""
    temperatures = list(dict.fromkeys(cell["temperature"] for cell in found))
    names = [name for name in DRAFTERS if any(name in drafters(cell) for cell in found)]
    size = (3.4 * len(names) + 0.4, 2.9 * len(temperatures) + 0.7)
    figure = Figure(figsize=size, dpi=130, facecolor="white")
    plots = figure.subplots(len(temperatures), len(names), squeeze=False, sharex=True, sharey=True)
    for row, temperature in zip(plots, temperatures, strict=True):
        for plot, drafter in zip(row, names, strict=True):
            mine = [cell for cell in found if cell["temperature"] == temperature and drafter in drafters(cell)]
            _draw_lines(plot, mine, drafter)
            plot.set_title(f"{drafter}, T = {temperature:g}", fontsize=9, color=GREY, loc="left")
    contexts = sorted({cell["context"] for cell in found})
    plots[0][0].set_xscale("log", base=2)
    plots[0][0].set_xticks(contexts, list(map(str, contexts)))
    plots[0][0].minorticks_off()
    plots[0][0].set_ylim(bottom=0)
    for plot in plots[-1]:
        plot.set_xlabel("context, tokens", fontsize=8, color=GREY)
    plots[0][0].legend(fontsize=7, frameon=False)
    gap = "\n" if len(names) == 1 else " "
    title = f"Times plain decoding: auto (lines,{gap}95 % intervals) and the best chain (dashed)"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK, weight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return figure


def _draw_lines(plot: Any, found: list[dict[str, Any]], drafter: str) -> None:
    plot.axhline(1, color=REFERENCE, linewidth=0.8, linestyle=":")
    for batch in dict.fromkeys(cell["batch"] for cell in found):
        mine = [cell for cell in found if cell["batch"] == batch]
        colour, shift = COLOURS[batch], 1 + 0.03 * list(COLOURS).index(batch)  # So that intervals stand side by side.
        contexts = [shift * cell["context"] for cell in mine]
        speeds = [ratio(ms(cell["runs"], PLAIN), ms(cell["runs"], f"{drafter}, {AUTO}")) for cell in mine]
        chains = [ms(cell["runs"], best(cell["runs"], drafter, "chain")) for cell in mine]
        chain = [ratio(ms(c["runs"], PLAIN), found).value for c, found in zip(mine, chains, strict=True)]
        plot.vlines(contexts, [s.low for s in speeds], [s.high for s in speeds], color=colour, linewidth=2, alpha=0.4)
        values = [s.value for s in speeds]
        plot.plot(contexts, values, color=colour, marker="o", markersize=3.5, label=f"batch {batch}")
        plot.plot(contexts, chain, color=colour, linestyle="--", linewidth=0.9, alpha=0.8)
    plain_axes(plot)


def _head(cell: dict[str, Any]) -> list[str]:
    return [str(cell["batch"]), str(cell["context"]), str(len(cell["runs"]))]


def _text(found: Estimate, digits: int = 2) -> str:
    """Without an interval where a single group was measured."""
    return f"{found.value:.{digits}f}" if found.low == found.high else found.text(digits)


def _outputs(cell: dict[str, Any], *names: str) -> str:
    """Rows of these contestants at T=0: as plain, tied or wrong."""
    count: Counter[str] = Counter()
    for run in cell["runs"].values():
        for name in names:
            count.update(run[name].get("outputs", {}))
    texts = [f"{count[kind]} {kind}" for kind in ("identical", "tied") if count[kind]]
    return " + ".join(texts) + (f", {count['wrong']} WRONG" if count["wrong"] else "")


ABOUT = (
    "Rows are prompts behind the texts of others, exactly as long as the context; all of a batch are read once, "
    "and every contestant gets copies of the target's and the head's caches, so reading is not counted. Plain is "
    "`generate` with the optimized model; with a growing cache it does not copy its cache for every token. Every group "
    "of rows is decoded by all contestants, in rotating order. Chains of 2 and 4 nodes and trees of 8 and 16; the best "
    "of them is chosen in hindsight. Times plain: medians of paired ratios over groups, with 95 % bootstrap intervals "
    "where there are several. Tied outputs part from plain's where two logits lie within 1e-4."
)
