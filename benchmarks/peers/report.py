"""The report of `benchmarks.peers`: tables and a picture."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common.estimates import ratio
from benchmarks.common.prompts import SPEED_BENCH
from benchmarks.common.settings import markdown_table, settings_lines
from benchmarks.peers.contestants import AUTO, COMPILED, OPTIMIZED, PLAIN, RANDOM, WORDS, title, tree_name
from treespec.lab.measure.estimates import bootstrap
from treespec.lab.measure.paired import Run
from treespec.viz import ACCEPTED, NEXT_EDGE, REFERENCE

TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
"""Spec-Bench's categories without open talk; the other eight are MT-Bench's."""
LATE_CALL = 10
Prompts = dict[str, dict[str, dict[str, Any]]]
"""Runs by prompt and contestant."""


def report(data: dict[str, Any], about: str, picture: str = "peers.png") -> str:
    """Markdown: all cells in a table, then by cell the contestants, the control and the categories of prompts."""
    cells = {cell: complete(found["prompts"]) for cell, found in data["found"].items()}
    lines = ["# Trees and their peers", "", about.split("\n\n")[2].replace("\n", " ").strip(), ""]
    lines += [f"![Milliseconds per token and speed by category]({picture})", "", cell_table(cells)]
    for cell, found in data["found"].items():
        prompts, run, loads = cells[cell], found["run"], found["loads"]
        lines += [f"## {cell}", ""]
        lines += [f"{len(prompts)} prompts, {run['new_tokens']} new tokens, load {min(loads)} to {max(loads)}.", ""]
        lines += [table(prompts), control_table(prompts), category_table(prompts)]
        lines += [f"Left out: {title(name)}: {reason}.\n" for name, reason in found["left_out"].items()]
        lines += [settings_lines(run)]
    lines.append(
        "Medians over prompts and medians of paired ratios, with 95 % bootstrap intervals; in total: optimized plain "
        "decoding's time divided by this one's, over all tokens. A tie: plain's two best logits differ by at most 1e-4 "
        "where the texts part. The best chain and tree are chosen in hindsight."
    )
    return "\n".join(lines) + "\n"


def as_plain(run: Run, agreement: str | None = None) -> dict[str, Any]:
    """A run as plain data; `tokens`: how many, of all rows.

    `passes` are those that decided tokens: not a tree's reading of the prompt. Other libraries do not say how many.
    """
    found = {"seconds": run.seconds, "tokens": run.num_tokens, "reading": run.reading, "num_read": run.num_read}
    passes = {"passes": (run.num_passes - (run.num_read == 0)) * len(run.rows)} if run.num_passes else {}
    return found | passes | ({} if agreement is None else {"agreement": agreement})


def complete(prompts: Prompts) -> Prompts:
    """Prompts where every contestant emitted more than reading gave: fewer leave nothing to divide by."""
    return {name: runs for name, runs in prompts.items() if all(num_decoded(run) > 0 for run in runs.values())}


def num_decoded(run: dict[str, Any]) -> int:
    """Tokens without those that reading gave; older results took reading from a call for one token."""
    return run["tokens"] - run.get("num_read", 1)


def ms_per_token(prompts: Prompts, name: str, is_whole: bool = False) -> list[float]:
    """Milliseconds of decoding, or of whole calls for as many tokens as plain's, as sampled texts differ in length."""
    mine = [runs[name] for runs in prompts.values()]
    decoding = [1e3 * (run["seconds"] - run["reading"]) / num_decoded(run) for run in mine]
    if not is_whole:
        return decoding
    lengths = [runs.get(PLAIN, runs[name])["tokens"] for runs in prompts.values()]
    return [(1e3 * r["seconds"] + ms * (n - r["tokens"])) / n for r, ms, n in zip(mine, decoding, lengths, strict=True)]


def speed(prompts: Prompts, name: str | None, other: str | None, is_whole: bool = False) -> str:
    """How many times as fast one is as another; nothing where one is missing."""
    if not {name, other} <= runs_of_one(prompts).keys():
        return ""
    return ratio(*(ms_per_token(prompts, str(one), is_whole) for one in (other, name))).text()


def in_total(prompts: Prompts, name: str, other: str = OPTIMIZED) -> str:
    """How many times as fast whole calls are, over all tokens together."""
    tokens = [runs.get(PLAIN, runs[name])["tokens"] for runs in prompts.values()]
    ms, mine = (np.dot(ms_per_token(prompts, one, is_whole=True), tokens) for one in (other, name))
    return f"{ms / mine:.2f}"


def runs_of_one(prompts: Prompts) -> dict[str, Any]:
    """A prompt's runs, which name the contestants in order."""
    return next(iter(prompts.values()), {})


def tokens_per_pass(prompts: Prompts, name: str) -> str:
    """Tokens per pass of a row, over all prompts, where passes were counted."""
    runs = [runs[name] for runs in prompts.values()]
    if not all("passes" in run for run in runs):
        return ""
    return f"{sum(run['tokens'] for run in runs) / sum(run['passes'] for run in runs):.2f}"


def cell_table(cells: dict[str, Prompts]) -> str:
    """All cells, decoding alone but for the whole calls, against the plain decoding that is the faster one there."""
    rows = []
    for cell, prompts in cells.items():
        if (plain := fastest(prompts, [PLAIN, OPTIMIZED, COMPILED])) is None:
            continue
        ms = f"{np.median(ms_per_token(prompts, plain)):.1f}"
        fixed = [best(prompts, kind) for kind in ("chain", "tree")]
        texts = [f"{title(name)}: {speed(prompts, name, plain)}" if name else "" for name in fixed]
        auto = [speed(prompts, AUTO, plain, is_whole) for is_whole in (False, True)]
        rows.append([cell, title(plain), ms, *texts, *auto, speed(prompts, tree_name(AUTO, RANDOM), plain)])
    header = ["times the faster plain decoding", "which", "ms per token", "best chain", "best tree", title(AUTO)]
    return markdown_table([*header, "whole calls", WORDS[RANDOM]], rows)


def table(prompts: Prompts) -> str:
    """A row per contestant."""
    header = ["", "ms per token", "times plain", "times plain, optimized", "whole calls: times plain"]
    header += ["times plain, optimized", "in total", "tokens per pass", f"{title(AUTO)} against it", "outputs"]
    rows = [
        [
            title(name),
            bootstrap(ms_per_token(prompts, name), np.median).text(1),
            *(speed(prompts, name, plain, is_whole) for is_whole, plain in product((False, True), (PLAIN, OPTIMIZED))),
            in_total(prompts, name),
            tokens_per_pass(prompts, name),
            speed(prompts, AUTO, name) if name != AUTO else "",
            agreements(prompts, name),
        ]
        for name in runs_of_one(prompts)
    ]
    return markdown_table(header, rows)


def agreements(prompts: Prompts, name: str) -> str:
    found = Counter(runs[name].get("agreement", "sampled") for runs in prompts.values())
    return "" if "sampled" in found else ", ".join(f"{count} {kind}" for kind, count in found.most_common())


def category(name: str) -> str:
    """A prompt's kind, by its name; a batch has prompts of several."""
    if " | " in name:
        return "batches"
    if found := re.fullmatch(rf"(Spec-Bench|{SPEED_BENCH})/[^(]*\((.+)\)", name):
        is_known = found[1] == SPEED_BENCH or found[2] in TASKS
        return f"{found[1]}, {found[2] if is_known else 'talk'}"
    return "HumanEval" if name.startswith("HumanEval") else "GSM8K"


def by_category(prompts: Prompts) -> dict[str, Prompts]:
    found: dict[str, Prompts] = {}
    for name, runs in prompts.items():
        found.setdefault(category(name), {})[name] = runs
    return found


def fastest(prompts: Prompts, candidates: Iterable[str], is_whole: bool = False) -> str | None:
    """The contestant that is fastest on average, in hindsight."""
    present = [name for name in candidates if name in runs_of_one(prompts)]
    return min(present, key=lambda name: fmean(ms_per_token(prompts, name, is_whole)), default=None)


def best(prompts: Prompts, kind: str, drafter: str = "", is_whole: bool = False) -> str | None:
    """The fastest "chain" or "tree" of a drafter (empty: the merged head)."""
    pattern = rf"{kind}-\d+" + (f"-{re.escape(drafter)}" if drafter else "")
    return fastest(prompts, [name for name in runs_of_one(prompts) if re.fullmatch(pattern, name)], is_whole)


def control_table(prompts: Prompts) -> str:
    """By drafter the gain of `tree="auto"` over plain and over the best fixed shapes, in whole calls too."""
    late = {name: runs for name, runs in prompts.items() if runs.get(AUTO, {}).get("call", 0) >= LATE_CALL}
    parts = [(name, title(name), prompts) for name in runs_of_one(prompts) if name.split("-")[0] == AUTO]
    parts += [(AUTO, f"{title(AUTO)}, from call {LATE_CALL} on", late)] * bool(late)
    rows = []
    for (name, words, part), is_whole in product(parts, (False, True)):
        drafter = name.partition("-")[2]
        fixed = [best(part, kind, drafter, is_whole) or best(part, kind, "", is_whole) for kind in ("chain", "tree")]
        which = " / ".join("-" if other is None else title(other) for other in fixed)
        speeds = [speed(part, name, other, is_whole) for other in (OPTIMIZED, *fixed)]
        rows.append([words + ", whole calls" * is_whole, str(len(part)), *speeds, which])
    header = ["", "prompts", "against plain, optimized", "against the best chain", "against the best tree", "which"]
    return "Control against fixed shapes:\n\n" + markdown_table(header, rows) if rows else ""


def category_table(prompts: Prompts) -> str:
    """Speeds against plain decoding by category, last those of control in decoding and in whole calls."""
    shown = [
        name for name in ("lookup", best(prompts, "chain"), best(prompts, "tree"), AUTO) if name in runs_of_one(prompts)
    ]
    rows = [
        [kind, str(len(mine)), *(speed(mine, name, PLAIN) for name in shown)]
        + [speed(mine, AUTO, OPTIMIZED, is_whole) for is_whole in (False, True)]
        for kind, mine in by_category(prompts).items()
    ]
    header = ["category", "prompts", *map(title, filter(None, shown))]
    header += [f"{title(AUTO)} against plain, optimized", "whole calls"]
    return "Times plain `generate`, by category:\n\n" + markdown_table(header, rows)


def picture(data: dict[str, Any], path: Path) -> None:
    """One row per temperature: contestants on the left, categories on the right."""
    found = {title: complete(cell["prompts"]) for title, cell in data["found"].items()}
    num_names = max(len(runs_of_one(prompts)) for prompts in found.values())
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
    names = list(runs_of_one(prompts))
    for number, name in enumerate(names):
        value, low, high = bootstrap(ms_per_token(prompts, name), np.median)
        colour = ACCEPTED if name.startswith(AUTO) else REFERENCE
        plot.errorbar(value, number, xerr=[[value - low], [high - value]], fmt="o", color=colour, markersize=5)
    plot.set_yticks(range(len(names)), [title(name).replace("`", "") for name in names], fontsize=8)
    plot.invert_yaxis()
    plot.set_xlim(left=0)


def draw_categories(plot: Axes, prompts: Prompts) -> None:
    names = [name for name in runs_of_one(prompts) if name.startswith(AUTO)]
    auto, kinds = min(names, default=AUTO), by_category(prompts)
    shown = {OPTIMIZED: REFERENCE, best(prompts, "chain", auto.partition("-")[2]): NEXT_EDGE, auto: ACCEPTED}
    for shift, (name, colour) in enumerate(shown.items()):
        if name not in runs_of_one(prompts):
            continue
        for number, mine in enumerate(kinds.values()):
            value, low, high = ratio(ms_per_token(mine, PLAIN), ms_per_token(mine, name))
            label = title(name).replace("`", "") if number == 0 else None
            errors, height = [[value - low], [high - value]], number + 0.2 * (shift - 1)
            plot.errorbar(value, height, xerr=errors, fmt="o", color=colour, markersize=4, label=label)
    plot.axvline(1, color=REFERENCE, linewidth=0.8, linestyle=":")
    plot.set_yticks(range(len(kinds)), [f"{kind} ({len(mine)})" for kind, mine in kinds.items()], fontsize=8)
    plot.invert_yaxis()
    plot.set_xlim(left=0)
    plot.legend(fontsize=7, frameon=False)
