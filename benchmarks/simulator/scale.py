"""Predicted tokens per second on other hardware by batch size: plain, the best chain, the best tree, `tree="auto"`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.common.settings import markdown_table
from benchmarks.simulator.hardware import H200, H200_FLOAT8, LLAMA_8B, LLAMA_70B, Hardware, Target, fits, step_costs
from benchmarks.simulator.replay import policies, replayed
from treespec.viz import ACCEPTED, GREY, INK, REFERENCE

NUM_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT = 1000
CASES: tuple[tuple[Hardware, Target], ...] = ((H200, LLAMA_8B), (H200_FLOAT8, LLAMA_70B))
KINDS = ("plain", "chain", "tree", "auto")
COLOURS = dict(zip(KINDS, (GREY, REFERENCE, ACCEPTED, INK), strict=True))
Found = dict[str, dict[int, dict[str, float]]]
"""Tokens per second, by case, batch size and policy."""


def scale(recorded: Sequence[dict[str, Any]], drafter: str, advance: Any) -> Found:
    """Replay all texts with every policy at the costs of every case."""
    found: Found = {}
    for hardware, target in CASES:
        by_rows = found[f"{target.name} on {hardware.name}"] = {}
        for num_rows in NUM_ROWS:
            advance()
            if not fits(hardware, target, num_rows, CONTEXT):
                continue
            costs = step_costs(hardware, target, num_rows, CONTEXT)
            by_rows[num_rows] = {
                name: 1e3 * num_rows / replayed(recorded, drafter, make(), costs).ms_per_token
                for name, make in policies().items()
            }
    return found


def best(by_policy: dict[str, float], kind: str) -> str:
    """The fastest policy of a kind."""
    return max((name for name in by_policy if name.startswith(kind)), key=lambda name: by_policy[name])


def report(found: Found) -> str:
    """A table per case."""
    lines = []
    for case, by_rows in found.items():
        rows = []
        for num_rows, speeds in by_rows.items():
            plain, chain, tree = speeds["plain"], best(speeds, "chain"), best(speeds, "tree")
            cells = [f"{name}: {speeds[name] / plain:.2f}" for name in (chain, tree)]
            rows.append([str(num_rows), f"{plain:,.0f}", *cells, f"{speeds['auto'] / plain:.2f}"])
        header = ["texts at once", "plain, tokens per second", "best chain, times plain", "best tree", "auto"]
        lines += [f"## {case}", "", markdown_table(header, rows), _crossings(by_rows), ""]
    return "\n".join(lines)


def _crossings(by_rows: dict[int, dict[str, float]]) -> str:
    """From which batch size on chains are as fast as trees, and plain decoding as drafts."""
    chain = next((n for n, s in by_rows.items() if s[best(s, "chain")] >= s[best(s, "tree")]), None)
    plain = next((n for n, s in by_rows.items() if s["plain"] >= max(s[best(s, "chain")], s[best(s, "tree")])), None)
    return " ".join(
        f"{name} from {at} texts at once." if at else f"{name} at none of these sizes."
        for name, at in (("The best chain passes the best tree", chain), ("Plain decoding passes both", plain))
    )


def picture(found: Found, path: Path) -> None:
    """Speed relative to plain by batch size, a plot per case."""
    figure = Figure(figsize=(5.5 * len(found), 3.6), dpi=120)
    for plot, (case, by_rows) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for kind in KINDS:
            values = [speeds[best(speeds, kind)] / speeds["plain"] for speeds in by_rows.values()]
            plot.plot(list(by_rows), values, "o-", color=COLOURS[kind], markersize=3, label=kind)
        plot.set_xscale("log", base=2)
        plot.set_xticks(list(by_rows), [str(n) for n in by_rows])
        plot.set_ylim(bottom=0)
        plot.set_xlabel("texts at once")
        plot.set_title(f"{case}: predicted, times plain", fontsize=9, loc="left")
        plot.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
