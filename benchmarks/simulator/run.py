"""Tokens per second without a clock: recorded drafts and given pass times.

Prompts are decoded token by token while the parts of the merged drafter (the head, recycling, suffix lookup) propose
large trees of selected children at every position; these trees and the texts are recorded once. A replay walks the
texts with a policy: it cuts the recorded trees to what the policy would have grown, accepts what the text goes on with,
and takes the times from a table.

    python -m benchmarks.simulator record drafts.pt --prompts 16 --new-tokens 48
    python -m benchmarks.simulator control drafts.pt
    python -m benchmarks.simulator check drafts.pt
    python -m benchmarks.simulator scale drafts.pt

`control` compares `tree="auto"` with fixed trees without the noise of a machine; the one time that it measures is the
control's own, per step. `check` predicts times on this machine and measures them. `scale` predicts other hardware.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.common.progress import progress_bar
from benchmarks.common.settings import RESULTS, markdown_table, parser, settings, settings_lines, write_json
from benchmarks.control import held_out
from benchmarks.simulator.check import check
from benchmarks.simulator.costs import DRAFTERS, EXAMPLE
from benchmarks.simulator.hardware import H200, H200_FLOAT8, LLAMA_8B, LLAMA_70B
from benchmarks.simulator.record import record
from benchmarks.simulator.replay import policies, replayed
from benchmarks.simulator.scale import CASES, CONTEXT, NUM_ROWS, picture, report, scale

FOLDER = RESULTS / "simulator"


def control_table(recorded: Sequence[dict[str, Any]]) -> str:
    rows = []
    for name, make in policies().items():
        cells = []
        for drafter in DRAFTERS:
            replay = replayed(recorded, drafter, make(), EXAMPLE)
            taken = [f"{n} {c / replay.names.total():.0%}" for n, c in replay.names.most_common(2)]
            taken += [f"own time {np.median(replay.own_ms):.2f} ms"] if replay.own_ms else []
            cells.append(f"{replay.ms_per_token:.2f}" + (f" ({', '.join(taken)})" if taken else ""))
        rows.append([name, *cells])
    return f"Costs: `{EXAMPLE}`.\n\n" + markdown_table(["ms per token", *DRAFTERS], rows)


def _write(name: str, title: str, recorded: Sequence[dict[str, Any]], text: str, console: Console) -> None:
    lines = [f"# {title}", "", (__doc__ or "").split("\n\n")[1].replace("\n", " "), ""]
    lines += [f"{len(recorded)} texts of at most {max(len(one['text']) for one in recorded)} tokens.", "", text]
    text = "\n".join([*lines, settings_lines(settings())])
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.md").write_text(text)
    console.print(text, markup=False)


def _control(args: argparse.Namespace, recorded: list[dict[str, Any]], console: Console) -> None:
    _write("control", "Measured control on recorded drafts", recorded, control_table(recorded), console)


def _check(args: argparse.Namespace, recorded: list[dict[str, Any]], console: Console) -> None:
    text, found = check(args, recorded, console)
    write_json(FOLDER / "check.json", settings(found=found))
    _write("check", "Predicted and measured time", recorded, text, console)


def _scale(args: argparse.Namespace, recorded: list[dict[str, Any]], console: Console) -> None:
    with progress_bar(console) as progress:
        task = progress.add_task("replays", total=len(CASES) * len(NUM_ROWS))
        found = scale(recorded, args.drafter, lambda: progress.advance(task))
    FOLDER.mkdir(parents=True, exist_ok=True)
    picture(found, FOLDER / "scale.png")
    about = [
        f"Acceptance as recorded (SmolLM2-135M-Instruct, greedy), drafter `{args.drafter}`, {CONTEXT} cached tokens.",
        "Times are a roofline, not a measurement:",
        *(f"`{one}`" for one in (H200, H200_FLOAT8, LLAMA_8B, LLAMA_70B)),
    ]
    text = "![Speed](scale.png)\n\n" + "\n\n".join(about) + "\n\n" + report(found)
    _write("scale", "Predicted speed on other hardware", recorded, text, console)
    write_json(FOLDER / "scale.json", settings(found=found))


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    if args.what == "record":
        torch.save(record(args, held_out(args.spec_bench, args.prompts), console), args.file)
        return
    {"control": _control, "check": _check, "scale": _scale}[args.what](args, torch.load(args.file), console)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "", threads=2)
    options.add_argument("what", choices=["record", "control", "check", "scale"])
    options.add_argument("file", type=Path, help="of recorded drafts")
    options.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl; without it two sources are used")
    options.add_argument("--prompts", type=int, default=16)
    options.add_argument("--new-tokens", type=int, default=48)
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--drafter", choices=list(DRAFTERS), default="merged", help="of `scale`")
    return options.parse_args()
