"""A trace as one HTML page that needs no network: data, code and styles are in it."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from treespec.lab.diagnosis import diagnose, of_trace
from treespec.lab.trace import Trace, TracedCall, TracedStep

SCRIPTS = (
    "vendor/htm-preact-standalone.umd.js",
    "vendor/uPlot.iife.min.js",
    "vendor/d3-hierarchy.min.js",
    "app.js",
    "charts.js",
)
STYLES = ("vendor/uPlot.min.css", "style.css")
MOST_RANK = 7
"""Higher ranks are counted with it."""
LEFT_OUT = ("draft_index", "is_without_replacement", "is_width_fixed", "shard", "num_rows", "step")


def write_page(trace: Trace, path: str | PathLike[str]) -> None:
    """Write the page. Its parts are listed with their licences in `viz/page/vendor/LICENSES.txt`.

    Raises:
        TraceError: the trace has no step.
        OSError: the page cannot be written.
    """
    page = files("treespec.viz") / "page"
    scripts = "\n".join((page / name).read_text(encoding="utf-8") for name in SCRIPTS)
    # To a parser of HTML "</script" ends the element, and "<!--<script" hides its end.
    data = json.dumps(_data(trace), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    parts = {"title": _title(trace), "data": data, "scripts": scripts}
    parts["styles"] = "\n".join((page / name).read_text(encoding="utf-8") for name in STYLES)
    template = Template((page / "page.html").read_text(encoding="utf-8"))
    Path(path).write_text(template.substitute(parts), encoding="utf-8")


def _title(trace: Trace) -> str:
    return f"treespec trace of {trace.calls[-1].about.get('model', 'a model')}".replace("<", "")


def _data(trace: Trace) -> dict[str, Any]:
    found = diagnose(of_trace(trace))
    about = trace.calls[-1].about
    kind = "sampling" if about.get("is_sampling") else "greedy"
    settings = ", ".join(f"{name}={value}" for name, value in about.get("sampling", {}).items())
    parts = [
        about.get("drafter"),
        about.get("policy"),
        f"rule {about.get('rule')}",
        f"{kind} {settings}".strip(),
        Path(trace.path).name,
    ]
    by_depth, by_rank, by_drafter = _acceptance(trace)
    return {
        "title": _title(trace),
        "subtitle": " · ".join(str(part) for part in parts if part),
        "found": found.as_dict(),
        "drafters": [name for name, *_ in by_drafter],
        "by_depth": by_depth,
        "by_rank": by_rank,
        "by_drafter": by_drafter,
        "calls": [_call(call) for call in trace.calls if call.steps],
    }


def _call(call: TracedCall) -> dict[str, Any]:
    prompts = call.about.get("prompt") or [
        " ".join(map(str, ids)) + " " for ids in call.about.get("prompt_ids") or [[]]
    ]
    return {"prompts": prompts, "texts": call.texts, "steps": [_step(step) for step in call.steps]}


def _step(step: TracedStep) -> dict[str, Any]:
    """What the page shows; of the predictions of all candidates the chosen name and the reason are enough."""
    shown = {name: value for name, value in vars(step).items() if name not in LEFT_OUT}
    if step.choice is not None:
        shown["choice"] = {name: step.choice[name] for name in ("name", "reason")}
    return shown


def _acceptance(trace: Trace) -> tuple[list[Any], list[Any], list[Any]]:
    """Rows of key, nodes, accepted ones: children of accepted nodes by depth and rank; all nodes by drafter."""
    counts: tuple[Counter[Any], ...] = tuple(Counter() for _ in range(6))
    tried, right, ranked, right_rank, drafted, right_drafted = counts
    for step in trace.steps:
        accepted = set(step.accepted)
        for depth, node in enumerate(step.path[: len(step.emitted)], start=1):
            children = step.children(node)
            tried[depth] += bool(children)
            right[depth] += any(child in accepted for child in children)
            ranks = [min(rank, MOST_RANK) for rank in range(len(children))]
            ranked.update(ranks)
            right_rank.update(rank for rank, child in zip(ranks, children, strict=True) if child in accepted)
        for name, nodes in step.drafters.items():
            drafted[name] += len(nodes)
            right_drafted[name] += len(accepted.intersection(nodes))
    pairs = ((tried, right), (ranked, right_rank), (drafted, right_drafted))
    by_depth, by_rank, by_drafter = ([[key, whole[key], part[key]] for key in whole] for whole, part in pairs)
    return [row for row in sorted(by_depth) if row[1]], sorted(by_rank), by_drafter
