"""Tables and a picture of what `trained_heads.py` measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.common.estimates import quotient, ratio
from benchmarks.common.settings import markdown_table, settings_lines
from treespec.hf.loading import smollm2
from treespec.viz import Measured, plot_comparison

PLAIN = "plain generate"


class Measurement(NamedTuple):
    """One prompt decoded by one contestant.

    `ms_per_token` is that of the tokens behind the first step, None where that was the last. The others say how greedy
    output compares with plain decoding's, see `Agreement`; None above temperature zero.
    """

    num_tokens: int
    num_passes: int
    ms_per_token: float | None
    is_identical: bool | None = None
    is_right: bool | None = None


Runs = dict[str, dict[str, list[Measurement]]]
"""By temperature and contestant, one measurement per prompt."""


def picture(runs: Runs, data: dict[str, Any], path: Path) -> None:
    """Bars at the first of the temperatures."""
    measured, (key, by_name) = [], next(iter(runs.items()))
    timed = [
        n for n, of_prompt in enumerate(zip(*by_name.values(), strict=True)) if all(r.ms_per_token for r in of_prompt)
    ]
    for name, found in by_name.items():
        ms = [found[n].ms_per_token or 0.0 for n in timed]
        measured.append(Measured(name, ms, [run.num_tokens / run.num_passes for run in found]))
    title = f"{smollm2.NAME}, {key}, float32, {data['num_prompts']} held-out prompts"
    note = f"{data['threads']} threads, load average {data['load_average']} before, {data['load_average_after']} after."
    plot_comparison(measured, path, title, note)


def report(runs: Runs, data: dict[str, Any]) -> str:
    """The result file for people."""
    parts = [f"## {key}\n\n" + table(by_name) for key, by_name in runs.items()]
    return (
        f"# Trained drafters on {data['num_prompts']} held-out prompts\n\n"
        f"{data['new_tokens']} new tokens each. Tokens per target pass: all tokens of all prompts by all passes "
        "that decided any, 95 % bootstrap over prompts. Milliseconds per token after the first step: medians over "
        "prompts; speed: medians of the paired ratios to plain `generate`, with 95 % bootstrap intervals. All share "
        "the model, its packed linear layers and threads.\n\n"
        + "\n".join(parts)
        + f"\nSeed {data['seed']}, load average {data['load_average']} before, {data['load_average_after']} after. "
        + settings_lines(data)
    )


def table(runs: dict[str, list[Measurement]]) -> str:
    """Rows: contestants; where outputs were compared with plain decoding's, the result."""
    is_compared = any(run.is_right is not None for found in runs.values() for run in found)
    header = ["", "tokens per target pass", "ms per token", "speed"] + ["identical to plain"] * is_compared
    rows = []
    for name, found in runs.items():
        tokens_per_pass = quotient([run.num_tokens for run in found], [run.num_passes for run in found])
        rows.append([name, tokens_per_pass.text(), *_times(runs[PLAIN], found)])
        if is_compared:
            rows[-1].append(_verdict(found))
    return markdown_table(header, rows)


def _times(plain: Sequence[Measurement], found: Sequence[Measurement]) -> tuple[str, str]:
    """Milliseconds and speed over the prompts that both took more than one step for."""
    pairs = [(a.ms_per_token, b.ms_per_token) for a, b in zip(plain, found, strict=True)]
    timed = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not timed:
        return "", ""
    above, below = zip(*timed, strict=True)
    return f"{median(below):.1f}", ratio(above, below).text()


def _verdict(found: Sequence[Measurement]) -> str:
    same, wrong = sum(bool(run.is_identical) for run in found), sum(not run.is_right for run in found)
    ties = len(found) - same - wrong
    return f"{same} of {len(found)}" + f", {ties} differ after a tie" * (ties > 0) + f", {wrong} WRONG" * (wrong > 0)
