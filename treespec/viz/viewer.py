"""A trace as one HTML page that needs no network: data, code and styles are in it."""

import json
from collections import Counter
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from treespec.engine.stats import SpeculationStats
from treespec.lab.diagnosis import diagnose, of_trace
from treespec.lab.trace import Trace, TracedCall, TracedStep

VENDORS = ("htm-preact-standalone.umd.js", "uPlot.iife.min.js", "d3-hierarchy.min.js")
SCRIPTS = (*(f"vendor/{name}" for name in VENDORS), "app.js", "charts.js")
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
    run, call = of_trace(trace), trace.calls[-1]
    parts = [call.about.get("drafter"), call.about.get("policy"), f"rule {call.about.get('rule')}", call.sampling]
    parts.append(Path(trace.path).name)
    by_drafter = [[name, count["nodes"], count["accepted"]] for name, count in run.trace.by_drafter.items()]
    return {
        "title": _title(trace),
        "subtitle": " · ".join(str(part) for part in parts if part),
        "found": diagnose(run).as_dict(),
        "drafters": [name for name, *_ in by_drafter],
        **_acceptance(run.stats),
        "by_drafter": by_drafter,
        "calls": [_call(call) for call in trace.calls if call.steps],
    }


def _call(call: TracedCall) -> dict[str, Any]:
    prompts = call.about.get("prompt") or [
        " ".join(map(str, ids)) + " " for ids in call.about.get("prompt_ids") or [[]]
    ]
    return {"prompts": prompts, "texts": call.texts, "steps": [_step(step) for step in call.steps]}


def _step(step: TracedStep) -> dict[str, Any]:
    """A step as the page shows it, which needs only the chosen name and the reason of all candidates' predictions."""
    shown = {name: value for name, value in vars(step).items() if name not in LEFT_OUT}
    if step.choice is not None:
        shown["choice"] = {name: step.choice[name] for name in ("name", "reason")}
    return shown


def _acceptance(stats: SpeculationStats) -> dict[str, list[list[int]]]:
    """Rows of key, nodes, accepted ones, for the children of accepted nodes: by depth (any child), by rank."""
    tried, ranked, right = Counter[int](), Counter[int](), Counter[int]()
    for (depth, rank), count in stats.num_considered_at_depth_and_rank.items():
        tried[depth] = max(tried[depth], count)  # All have a first child.
        ranked[min(rank, MOST_RANK)] += count
    for rank, count in stats.num_accepted_at_rank.items():
        right[min(rank, MOST_RANK)] += count
    by_depth = [[depth, count, stats.num_accepted_at_depth[depth]] for depth, count in sorted(tried.items())]
    return {"by_depth": by_depth, "by_rank": [[rank, count, right[rank]] for rank, count in sorted(ranked.items())]}
