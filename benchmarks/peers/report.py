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
from treespec.lab.measure.paired import Estimate, Run, bootstrap
from treespec.viz import ACCEPTED, NEXT_EDGE, REFERENCE

TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
"""Spec-Bench's categories without open talk; the other eight are MT-Bench's."""
LATE_CALL = 10
FEWEST = 3
"""Prompts or batches that an interval needs."""
Prompts = dict[str, dict[str, dict[str, Any]]]
"""Runs by prompt and contestant."""


def report(data: dict[str, Any], about: str, picture: str = "peers.png") -> str:
    """Markdown: all cells in a table, then by cell the contestants, the control and the categories of prompts."""
    cells = {cell: complete(found["prompts"]) for cell, found in data["found"].items()}
    lines = ["# Trees and their peers", "", about.split("\n\n")[2].replace("\n", " ").strip(), ""]
    lines += [f"![Milliseconds per token; speed by category, if several]({picture})", "", cell_table(cells)]
    for cell, found in data["found"].items():
        prompts, run, loads = cells[cell], found["run"], found["loads"]
        lines += [f"## {cell}", ""]
        lines += [f"{counted(prompts)}, {run['new_tokens']} new tokens, load {min(loads)} to {max(loads)}.", ""]
        lines += filter(None, [table(prompts), control_table(prompts), category_table(prompts)])
        lines += [f"Left out: {title(name)}: {reason}.\n" for name, reason in found["left_out"].items()]
        lines += [settings_lines(run)]
    lines.append(
        "Medians over prompts or batches and medians of paired ratios, from three on with 95 % bootstrap intervals; in "
        "total: optimized plain decoding's time divided by this one's, over all tokens. A tie: plain's two best logits "
        "differ by at most 1e-4 where the texts part. The best chain and tree and the faster plain decoding are chosen "
        "in hindsight."
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
    return text(ratio(*(ms_per_token(prompts, str(one), is_whole) for one in (other, name))), len(prompts))


def text(found: Estimate, count: int, digits: int = 2) -> str:
    """An estimate of so many prompts or batches; of too few without its interval."""
    return found.text(digits) if count >= FEWEST else f"{found.value:.{digits}f}"


def unit(prompts: Prompts, is_one: bool = False) -> str:
    one, more = ("batch", "batches") if any(" | " in name for name in prompts) else ("prompt", "prompts")
    return one if is_one else more


def counted(prompts: Prompts) -> str:
    """How many prompts, or batches of them."""
    return f"{len(prompts)} {unit(prompts, len(prompts) == 1)}"


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
    """All cells against the plain decoding that is the faster one there, in decoding alone and in whole calls."""
    autos = dict.fromkeys(title(auto(prompts)) for prompts in cells.values())
    header = ["times the faster plain decoding", "which", "ms per token", "best chain", "best tree", " / ".join(autos)]
    rows = [[cell, *cell_row(prompts)] for cell, prompts in cells.items() if prompts]
    return markdown_table([*header, WORDS[RANDOM], "whole calls", "which, whole calls"], rows)


def cell_row(prompts: Prompts) -> list[str]:
    plain, whole = (fastest(prompts, [PLAIN, OPTIMIZED, COMPILED], is_whole) or "" for is_whole in (False, True))
    fixed = [best(prompts, kind, drafter(auto(prompts))) for kind in ("chain", "tree")]
    texts = [f"{title(name)}: {speed(prompts, name, plain)}" if name else "" for name in fixed]
    texts += [speed(prompts, name, plain) for name in (auto(prompts), tree_name(AUTO, RANDOM))]
    ms = f"{np.median(ms_per_token(prompts, plain)):.1f}"
    return [title(plain), ms, *texts, speed(prompts, auto(prompts), whole, is_whole=True), title(whole)]


def auto(prompts: Prompts) -> str:
    """The contestant that chooses its trees, with drafters that draft: the merged head's, else another's."""
    names = [name for name in runs_of_one(prompts) if name.startswith(AUTO) and drafter(name) != RANDOM]
    return min(names, default=AUTO)


def drafter(name: str) -> str:
    """The drafter of a contestant that chooses its trees; empty: the merged head."""
    return name.partition("-")[2]


def table(prompts: Prompts) -> str:
    """A row per contestant."""
    header = ["", "ms per token", "times plain", "times plain, optimized", "whole calls: times plain"]
    header += ["times plain, optimized", "in total", "tokens per pass", f"{title(auto(prompts))} against it", "outputs"]
    rows = [
        [
            title(name),
            text(bootstrap(ms_per_token(prompts, name), np.median), len(prompts), 1),
            *(speed(prompts, name, plain, is_whole) for is_whole, plain in product((False, True), (PLAIN, OPTIMIZED))),
            in_total(prompts, name),
            tokens_per_pass(prompts, name),
            speed(prompts, auto(prompts), name) if name != auto(prompts) else "",
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


def best(prompts: Prompts, kind: str, own: str = "", is_whole: bool = False) -> str | None:
    """The fastest "chain" or "tree" of a drafter (empty: the merged head)."""
    pattern = rf"{kind}-\d+" + (f"-{re.escape(own)}" if own else "")
    return fastest(prompts, [name for name in runs_of_one(prompts) if re.fullmatch(pattern, name)], is_whole)


def control_table(prompts: Prompts) -> str:
    """By drafter the gain of `tree="auto"` over plain and over the best fixed shapes, in whole calls too."""
    late = {name: runs for name, runs in prompts.items() if runs.get(AUTO, {}).get("call", 0) >= LATE_CALL}
    parts = [(name, title(name), prompts) for name in runs_of_one(prompts) if name.split("-")[0] == AUTO]
    parts += [(AUTO, f"{title(AUTO)}, from call {LATE_CALL} on", late)] * bool(late)
    rows = []
    for (name, words, part), is_whole in product(parts, (False, True)):
        kinds, own = ("chain", "tree"), drafter(name)
        fixed = [best(part, kind, own, is_whole) or best(part, kind, "", is_whole) for kind in kinds]
        which = " / ".join("-" if other is None else title(other) for other in fixed)
        speeds = [speed(part, name, other, is_whole) for other in (OPTIMIZED, *fixed)]
        rows.append([words + ", whole calls" * is_whole, str(len(part)), *speeds, which])
    against = [f"against {other}" for other in ("plain, optimized", "the best chain", "the best tree")]
    header = ["", unit(prompts), *against, "which"]
    return "Control against fixed shapes:\n\n" + markdown_table(header, rows) if rows else ""


def category_table(prompts: Prompts) -> str:
    """Speeds against plain decoding by category if there are several, last those of control, in whole calls too."""
    control, kinds = auto(prompts), by_category(prompts)
    fixed = [best(prompts, kind, drafter(control)) for kind in ("chain", "tree")]
    shown = [name for name in ("lookup", *fixed, control) if name in runs_of_one(prompts)]
    rows = [
        [kind, str(len(mine)), *(speed(mine, name, PLAIN) for name in shown)]
        + [speed(mine, control, OPTIMIZED, is_whole) for is_whole in (False, True)]
        for kind, mine in kinds.items()
    ]
    header = ["category", "prompts", *map(title, filter(None, shown))]
    header += [f"{title(control)} against plain, optimized", "whole calls"]
    return "Times plain `generate`, by category:\n\n" + markdown_table(header, rows) if len(kinds) > 1 else ""


def picture(data: dict[str, Any], path: Path) -> None:
    """A row per cell: contestants on the left, on the right categories where there are several."""
    found = {title: complete(cell["prompts"]) for title, cell in data["found"].items()}
    counts = [len(by_category(prompts)) for prompts in found.values()]
    heights = [0.9 + 0.3 * max(len(runs_of_one(p)), 2 * count) for p, count in zip(found.values(), counts, strict=True)]
    num_columns = 2 if max(counts) > 1 else 1
    figure = Figure(figsize=(1 + 5.5 * num_columns, sum(heights)), dpi=110)
    plots = figure.subplots(len(found), num_columns, squeeze=False, height_ratios=heights)
    for (left, *right), (cell, prompts) in zip(plots, found.items(), strict=True):
        draw_contestants(left, prompts)
        words = ", median and 95 % interval" if len(prompts) >= FEWEST else f" of {counted(prompts)}"
        left.set_title(f"{cell}: ms per token{words}", fontsize=9, loc="left")
        for plot in right:
            draw_categories(plot, prompts)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_contestants(plot: Axes, prompts: Prompts) -> None:
    names = list(runs_of_one(prompts))
    for number, name in enumerate(names):
        colour = ACCEPTED if name.startswith(AUTO) else REFERENCE
        draw(plot, bootstrap(ms_per_token(prompts, name), np.median), len(prompts), number, color=colour, markersize=5)
    label_rows(plot, [title(name).replace("`", "") for name in names])


def draw(plot: Axes, found: Estimate, count: int, height: float, **options: Any) -> None:
    """A point, and its interval where there are enough prompts or batches for one."""
    value, low, high = found
    errors = [[value - low], [high - value]] if count >= FEWEST else None
    plot.errorbar(value, height, xerr=errors, fmt="o", **options)


def label_rows(plot: Axes, names: list[str]) -> None:
    """Rows from above, with equal room above the first one and below the last."""
    plot.set_yticks(range(len(names)), names, fontsize=8)
    plot.set_ylim(len(names) - 0.5, -0.5)
    plot.set_xlim(left=0)


def draw_categories(plot: Axes, prompts: Prompts) -> None:
    control, kinds = auto(prompts), by_category(prompts)
    if len(kinds) < 2:
        plot.set_axis_off()
        return
    shown = {OPTIMIZED: REFERENCE, best(prompts, "chain", drafter(control)): NEXT_EDGE, control: ACCEPTED}
    present = [(name, colour) for name, colour in shown.items() if name in runs_of_one(prompts)]
    for (shift, (name, colour)), (number, mine) in product(enumerate(present, -1), enumerate(kinds.values())):
        found = ratio(ms_per_token(mine, PLAIN), ms_per_token(mine, name))
        label = title(name).replace("`", "") if number == 0 else None
        draw(plot, found, len(mine), number + 0.2 * shift, color=colour, markersize=4, label=label)
    plot.axvline(1, color=REFERENCE, linewidth=0.8, linestyle=":")
    label_rows(plot, [f"{kind} ({len(mine)})" for kind, mine in kinds.items()])
    plot.set_xlabel("times plain generate, by category", fontsize=9)
    plot.legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)
