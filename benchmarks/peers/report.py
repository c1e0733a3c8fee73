"""What `benchmarks.peers` measured, as tables and a picture."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common.estimates import ratio
from benchmarks.common.settings import markdown_table, settings_lines
from benchmarks.peers.contestants import AUTO, OPTIMIZED, PLAIN, title
from treespec.lab.measure.estimates import bootstrap
from treespec.viz import ACCEPTED, NEXT_EDGE, REFERENCE

TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
"""Spec-Bench's categories without open talk; the other eight are MT-Bench's."""
Prompts = dict[str, dict[str, dict[str, Any]]]
"""Runs by prompt and contestant."""


def report(data: dict[str, Any], about: str, picture: str = "peers.png") -> str:
    """Markdown: per temperature the contestants, then the categories of prompts."""
    lines = ["# Trees and their peers", "", about.split("\n\n")[2].replace("\n", " ").strip(), ""]
    lines += [f"![Milliseconds per token and speed by category]({picture})", ""]
    for cell, found in data["found"].items():
        prompts, run, loads = complete(found["prompts"]), found["run"], found["loads"]
        lines += [f"## {cell}", ""]
        lines += [f"{len(prompts)} prompts, {run['new_tokens']} new tokens, load {min(loads)} to {max(loads)}.", ""]
        lines += [table(prompts), drafter_table(prompts), category_table(prompts)]
        lines += [*left_out_lines(found["left_out"]), settings_lines(run)]
    lines.append(
        "Medians over prompts and medians of paired ratios, with 95 % bootstrap intervals. A tie: plain's two best "
        "logits differ by at most 1e-4 where the texts part. The best chain and tree are chosen in hindsight."
    )
    return "\n".join(lines) + "\n"


def complete(prompts: Prompts) -> Prompts:
    """Prompts where every contestant emitted more than reading gave: fewer leave nothing to divide by."""
    return {name: runs for name, runs in prompts.items() if all(num_decoded(run) > 0 for run in runs.values())}


def num_decoded(run: dict[str, Any]) -> int:
    """Tokens without those that reading gave; older results took reading from a call for one token."""
    return len(run["tokens"]) - run.get("num_read", 1)


def ms_per_token(prompts: Prompts, name: str) -> list[float]:
    """Without the time of reading the prompt, and without the tokens that it gave."""
    runs = [runs[name] for runs in prompts.values()]
    return [1e3 * (run["seconds"] - run["reading"]) / num_decoded(run) for run in runs]


def whole_ms_per_token(prompts: Prompts, name: str) -> list[float]:
    """Milliseconds per token of whole calls, reading the prompt included."""
    return [1e3 * runs[name]["seconds"] / len(runs[name]["tokens"]) for runs in prompts.values()]


def tokens_per_pass(prompts: Prompts, name: str) -> str:
    """Tokens per pass of a row, over all prompts, where passes were counted."""
    runs = [runs[name] for runs in prompts.values()]
    if not all("passes" in run for run in runs):
        return ""
    return f"{sum(len(run['tokens']) for run in runs) / sum(run['passes'] for run in runs):.2f}"


def table(prompts: Prompts) -> str:
    times = {name: ms_per_token(prompts, name) for name in next(iter(prompts.values()))}
    rows = []
    for name, ms in times.items():
        whole = ratio(whole_ms_per_token(prompts, PLAIN), whole_ms_per_token(prompts, name))
        rows.append(
            [
                title(name),
                bootstrap(ms, np.median).text(1),
                *(ratio(times[plain], ms).text() for plain in (PLAIN, OPTIMIZED)),
                whole.text(),
                tokens_per_pass(prompts, name),
                ratio(ms, times[AUTO]).text() if AUTO in times and name != AUTO else "",
                agreements(prompts, name),
            ]
        )
    header = ["", "ms per token", "times plain", "times plain, optimized", "times plain, prompt read too"]
    header.append("tokens per pass")
    return markdown_table([*header, '`tree="auto"` against it', "outputs"], rows)


def agreements(prompts: Prompts, name: str) -> str:
    found = Counter(runs[name].get("agreement", "sampled") for runs in prompts.values())
    return "" if "sampled" in found else ", ".join(f"{count} {kind}" for kind, count in found.most_common())


def category(name: str) -> str:
    """The category of a prompt, by its name; a batch has prompts of several."""
    if " | " in name:
        return "batches"
    if found := re.search(r"\((\w+)\)$", name):
        return f"Spec-Bench, {found[1] if found[1] in TASKS else 'talk'}"
    return "HumanEval" if name.startswith("HumanEval") else "GSM8K"


def by_category(prompts: Prompts) -> dict[str, Prompts]:
    found: dict[str, Prompts] = {}
    for name, runs in prompts.items():
        found.setdefault(category(name), {})[name] = runs
    return found


def best(prompts: Prompts, kind: str, drafter: str = "") -> str | None:
    """The "chain" or "tree" of a drafter (empty: the merged head) that is fastest on average, in hindsight."""
    pattern = rf"{kind}-\d+" + (f"-{re.escape(drafter)}" if drafter else "")
    names = [name for name in next(iter(prompts.values())) if re.fullmatch(pattern, name)]
    return min(names, key=lambda name: fmean(ms_per_token(prompts, name)), default=None)


def drafter_table(prompts: Prompts) -> str:
    """A row per drafter whose `tree="auto"` was measured: its gain over plain and over the best fixed shapes."""
    rows = []
    for name in next(iter(prompts.values())):
        if name.split("-")[0] != AUTO:
            continue
        fixed = [best(prompts, kind, name.partition("-")[2]) for kind in ("chain", "tree")]
        mine, others = ms_per_token(prompts, name), [OPTIMIZED, *fixed]
        ratios = ["" if other is None else ratio(ms_per_token(prompts, other), mine).text() for other in others]
        rows.append([title(name), *ratios, " / ".join("-" if other is None else title(other) for other in fixed)])
    header = ["", "against plain, optimized", "against its best chain", "against its best tree", "which"]
    return "Control against fixed shapes:\n\n" + markdown_table(header, rows) if rows else ""


def category_table(prompts: Prompts) -> str:
    """Speeds of the best chain and of control against plain decoding, by category."""
    chain, rows = best(prompts, "chain"), []
    shown = [name for name in ("lookup", chain, best(prompts, "tree"), AUTO) if name in next(iter(prompts.values()))]
    for kind, mine in by_category(prompts).items():
        plain = {name: ms_per_token(mine, name) for name in (PLAIN, OPTIMIZED)}
        cells = [ratio(plain[PLAIN], ms_per_token(mine, name)).text() for name in shown if name]
        last = ratio(plain[OPTIMIZED], ms_per_token(mine, AUTO)).text() if AUTO in shown else ""
        rows.append([kind, str(len(mine)), *cells, last])
    header = ["category", "prompts", *(title(name) for name in shown if name)]
    return "Times plain `generate`, by category:\n\n" + markdown_table(
        [*header, '`tree="auto"` against plain, optimized'], rows
    )


def left_out_lines(left_out: dict[str, str]) -> list[str]:
    return [f"Left out: {title(name)}: {reason}." for name, reason in left_out.items()] + [""] * bool(left_out)


def picture(data: dict[str, Any], path: Path) -> None:
    """One row per temperature: contestants on the left, categories on the right."""
    found = {title: complete(cell["prompts"]) for title, cell in data["found"].items()}
    num_names = max(len(next(iter(prompts.values()))) for prompts in found.values())
    figure = Figure(figsize=(12, (1.4 + 0.3 * max(num_names, 8)) * len(found)), dpi=110)
    plots = figure.subplots(len(found), 2, squeeze=False)
    for (left, right), (cell, prompts) in zip(plots, found.items(), strict=True):
        draw_contestants(left, prompts)
        left.set_title(f"{cell}: ms per token, median and 95 % interval", fontsize=9, loc="left")
        draw_categories(right, prompts)
        right.set_title("times plain `generate`, by category", fontsize=9, loc="left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_contestants(plot: Axes, prompts: Prompts) -> None:
    names = list(next(iter(prompts.values())))
    for number, name in enumerate(names):
        value, low, high = bootstrap(ms_per_token(prompts, name), np.median)
        colour = ACCEPTED if name == AUTO else REFERENCE
        plot.plot([low, high], [number, number], color=colour, linewidth=2, alpha=0.6)
        plot.plot([value], [number], "o", color=colour, markersize=5)
    plot.set_yticks(range(len(names)), [title(name).replace("`", "") for name in names], fontsize=8)
    plot.invert_yaxis()
    plot.set_xlim(left=0)


def draw_categories(plot: Axes, prompts: Prompts) -> None:
    kinds = by_category(prompts)
    shown = {OPTIMIZED: REFERENCE, best(prompts, "chain"): NEXT_EDGE, AUTO: ACCEPTED}
    for shift, (name, colour) in enumerate(shown.items()):
        if name not in next(iter(prompts.values())):
            continue
        for number, mine in enumerate(kinds.values()):
            value, low, high = ratio(ms_per_token(mine, PLAIN), ms_per_token(mine, name))
            height = number + 0.2 * (shift - 1)
            plot.plot([low, high], [height, height], color=colour, linewidth=2, alpha=0.6)
            label = title(name).replace("`", "") if number == 0 else None
            plot.plot([value], [height], "o", color=colour, markersize=4, label=label)
    plot.axvline(1, color=REFERENCE, linewidth=0.8, linestyle=":")
    plot.set_yticks(range(len(kinds)), [f"{kind} ({len(mine)})" for kind, mine in kinds.items()], fontsize=8)
    plot.invert_yaxis()
    plot.set_xlim(left=0)
    plot.legend(fontsize=7, frameon=False)
