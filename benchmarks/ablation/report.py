"""Paired statistics, a table and a picture of what `benchmarks.ablation` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from benchmarks.common.paired import Estimate, bootstrap, difference
from benchmarks.common.settings import markdown_table, settings_lines
from treespec.verification import RULES
from treespec.viz import ACCEPTED, GREY, INK, NEXT_EDGE, REFERENCE

PANEL = ("draft", "temperature", "top_p", "nodes")
COLOURS = (REFERENCE, NEXT_EDGE, ACCEPTED, INK, "#7b5ea7", "#b04a5a", "#3d7fb5", "#8a8a3d", GREY)

ROUNDING = 1e-4
"""Smaller gains count as zero: equal rules sum in different orders."""


class Cell(NamedTuple):
    """A combination of factors: its mean acceptance length, and the paired difference to its baseline."""

    levels: dict[str, Any]
    length: Estimate
    gain: Estimate | None
    """None for the baseline itself."""

    @property
    def name(self) -> str:
        return f"{self.levels['policy']}, {self.levels['rule']}"

    @property
    def is_lossless(self) -> bool:
        return RULES[self.levels["rule"]].is_lossless


def cells_of(rows: Sequence[Any], baseline: Mapping[str, str]) -> list[Cell]:
    """Statistics of every cell; its baseline is the cell of the given levels and else its own.

    Raises:
        ValueError: there is no such baseline, or it was measured in other contexts.
    """
    lengths: dict[tuple[tuple[str, Any], ...], dict[str, float]] = {}
    for row in rows:
        levels = tuple((name, value) for name, value in row._asdict().items() if name not in ("context", "length"))
        lengths.setdefault(levels, {})[row.context] = row.length
    by_text = {tuple((name, str(value)) for name, value in levels): levels for levels in lengths}
    cells = []
    for levels, mine in lengths.items():
        wanted = tuple((name, str(baseline.get(name, value))) for name, value in levels)
        if wanted not in by_text or not set(mine) <= set(lengths[by_text[wanted]]):
            raise ValueError(f"no baseline {dict(wanted)} was measured in the contexts of {dict(levels)}")
        reference = lengths[by_text[wanted]]
        is_baseline = by_text[wanted] == levels
        gain = None if is_baseline else difference(list(mine.values()), [reference[context] for context in mine])
        cells.append(Cell(dict(levels), bootstrap(list(mine.values())), gain))
    return cells


def panels_of(cells: Sequence[Cell]) -> dict[tuple[Any, ...], list[Cell]]:
    """Cells by everything but rule and policy."""
    panels: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        panels.setdefault(tuple(cell.levels[name] for name in PANEL), []).append(cell)
    return panels


def panel_title(key: Sequence[Any]) -> str:
    draft, temperature, top_p, nodes = key
    nucleus = f", top-p {top_p:g}" if top_p < 1 else ""
    return f"T={temperature:g}{nucleus}, {draft} draft, {nodes} nodes"


def finding(cells: Sequence[Cell]) -> str:
    """One sentence: the best lossless cell of a panel, and how many are above and below the baseline."""
    compared = [cell for cell in cells if cell.is_lossless and cell.gain is not None]
    best = max(compared, key=lambda cell: cell.length.value)
    above = sum(cell.gain.low > ROUNDING for cell in compared if cell.gain)
    below = sum(cell.gain.high < -ROUNDING for cell in compared if cell.gain)
    gain = best.gain.text(sign="+") if best.gain else ""
    return (
        f"of {len(compared)} lossless cells {above} accept more than the baseline beyond paired noise and {below} "
        f"less; the longest is {best.name} with {best.length.value:.2f} tokens per pass, {gain} over the baseline."
    )


def report(rows: Sequence[Any], baseline: Mapping[str, str], run: Mapping[str, Any], name: str) -> str:
    cells = cells_of(rows, baseline)
    panels = panels_of(cells)
    reference = ", ".join(f"{factor} {level}" for factor, level in baseline.items())
    lines = ["# Ablation: " + ", ".join(varied(rows)), "", _about(run, reference), ""]
    lines += [f"- {panel_title(key)}: {finding(group)}" for key, group in panels.items()]
    lines += ["", f"![Gains]({name}.png)", ""]
    for key, group in panels.items():
        table = [
            [
                cell.levels["policy"],
                cell.levels["rule"] if cell.is_lossless else f"*{cell.levels['rule']}* (lossy)",
                cell.length.text(),
                cell.gain.text(sign="+") if cell.gain else "baseline",
            ]
            for cell in group
        ]
        lines += [f"## {panel_title(key)}", "", markdown_table(["policy", "rule", "length", "gain"], table)]
    load = f"load {run['load_average']} before, {run['load_average_after']} after"
    lines.append(f"One row per cell and context: `{name}.csv`. {run['seconds']} s, {load}. {settings_lines(dict(run))}")
    return "\n".join(lines)


def varied(rows: Sequence[Any]) -> list[str]:
    """The factors with more than one level."""
    factors = [name for name in rows[0]._fields if name not in ("context", "length")]
    return [name.replace("_", "-") for name in factors if len({getattr(row, name) for row in rows}) > 1]


def draw(rows: Sequence[Any], baseline: Mapping[str, str], path: Path) -> Figure:
    """Paired gains with their intervals: a plot per panel, a line per policy, a colour per rule."""
    panels = panels_of(cells_of(rows, baseline))
    policies = list(dict.fromkeys(row.policy for row in rows))
    rules = list(dict.fromkeys(row.rule for row in rows))
    height = 1.4 + 0.19 * len(policies) * (1 + len(rules) / 2)
    figure = Figure(figsize=(3.2 + 3.6 * len(panels), height), dpi=130, facecolor="white")
    plots = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for plot, (key, cells) in zip(plots, panels.items(), strict=True):
        for cell in cells:
            shift = (rules.index(cell.levels["rule"]) - (len(rules) - 1) / 2) * 0.8 / len(rules)
            y = policies.index(cell.levels["policy"]) + shift
            colour = COLOURS[rules.index(cell.levels["rule"]) % len(COLOURS)]
            if cell.gain is None:
                plot.plot([0], [y], "D", color=colour, markersize=5)
                continue
            plot.plot([cell.gain.low, cell.gain.high], [y, y], color=colour, linewidth=1.6, alpha=0.6)
            plot.plot([cell.gain.value], [y], "o", color=colour, markersize=3.5)
        plot.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
        plot.set_title(panel_title(key), fontsize=9, color=GREY, loc="left")
        plot.set_xlabel("gain in tokens per pass, paired", fontsize=8, color=GREY)
        plot.grid(axis="x", color="#e6eaed", linewidth=0.8)
        plot.tick_params(length=0, labelsize=8, colors=INK)
        for side in ("top", "right"):
            plot.spines[side].set_visible(False)
    plots[0].set_yticks(range(len(policies)), policies)
    plots[0].invert_yaxis()
    for number, rule in enumerate(rules):
        plots[-1].plot([], [], "o-", color=COLOURS[number % len(COLOURS)], label=rule, markersize=3.5)
    plots[-1].legend(fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(1, 0))
    reference = ", ".join(baseline.values())
    figure.suptitle(f"Gain over {reference}", x=0.01, ha="left", fontsize=11, color=INK, weight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path)
    return figure


def _about(run: Mapping[str, Any], reference: str) -> str:
    return (
        f"Tokens per pass (accepted draft tokens + 1) in {run['contexts']} contexts per temperature: prefixes of "
        "texts that SmolLM2-135M sampled at that temperature. Exact in the rules' coins; the number of drafted trees "
        f"per context is {run['draws']} where children are sampled. Drafts are the target without some of its layers. "
        f"The gain is the mean paired difference to the baseline ({reference}, other factors alike), with a 95 % "
        "bootstrap interval over contexts. Rules that do not support a tree are left out."
    )
