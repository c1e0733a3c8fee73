"""Predicted and measured time per token on this machine.

Costs are fitted to a few policies on the first half of the prompts; then the other policies are predicted on the other
half, and measured there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from benchmarks.common.drafters import fastest_head, warm_start
from benchmarks.common.progress import progress_bar
from benchmarks.common.settings import load_average, markdown_table
from benchmarks.simulator.costs import (
    DRAFTERS,
    EXAMPLE,
    HEAD,
    RECYCLING,
    SUFFIX,
    Costs,
    MeanStep,
    fit_draft,
    fit_merge,
    fit_passes,
)
from benchmarks.simulator.replay import Replay
from treespec import BestFirst, Chain, Eagle3, TreeSpeculation, optimize
from treespec.engine.stats import SpeculationStats
from treespec.hf.loading import smollm2
from treespec.hf.models.pass_times import pass_times
from treespec.policies.best_first import CHILD_SHARE

Make = Callable[[], Any]
FITTED: dict[str, Make] = {
    "chain of 1": lambda: Chain(1),
    "chain of 5": lambda: Chain(5),
    "tree of 6": lambda: BestFirst(6, child_share=CHILD_SHARE),
    "tree of 24": lambda: BestFirst(24, child_share=CHILD_SHARE),
}
PREDICTED: dict[str, Make] = {
    "chain of 2": lambda: Chain(2),
    "chain of 4": lambda: Chain(4),
    "tree of 8": lambda: BestFirst(8, child_share=CHILD_SHARE),
    "tree of 16": lambda: BestFirst(16, child_share=CHILD_SHARE),
    "tree of 32": lambda: BestFirst(32, child_share=CHILD_SHARE),
}
Key = tuple[str, str]
"""Drafter and policy."""


@dataclass
class Measured:
    """Calls of one drafter with one policy; seconds without those of reading prompts."""

    stats: SpeculationStats = field(default_factory=SpeculationStats)
    seconds: float = 0.0

    @property
    def ms_per_token(self) -> float:
        return 1e3 * self.seconds / self.stats.num_emitted_tokens

    @property
    def tokens_per_pass(self) -> float:
        return self.stats.num_emitted_tokens / self.stats.num_target_passes

    @property
    def draft_ms(self) -> float:
        """A step's costs."""
        return 1e3 * self.stats.seconds["draft"] / self.stats.num_target_passes

    @property
    def rest_ms(self) -> float:
        """Everything else in a step."""
        return 1e3 * self.seconds / self.stats.num_target_passes - self.draft_ms

    def add(self, stats: SpeculationStats, seconds: float) -> None:
        self.stats.add(stats)
        self.seconds += seconds - stats.seconds["prefill"]


def check(args: argparse.Namespace, recorded: Sequence[dict[str, Any]], console: Console) -> tuple[str, dict[str, Any]]:
    """The table, and the numbers."""
    loaded, _ = smollm2.load(say=console.print)
    model: Any = loaded
    head = fastest_head(model)
    with optimize(model):
        profile = pass_times(model, is_remeasured=True)
        assert profile is not None
        half = len(recorded) // 2
        with progress_bar(console) as progress:
            fitted = _measure(model, head, recorded, FITTED, half, progress, is_first=True)
            measured = _measure(model, head, recorded, PREDICTED, half, progress, is_first=False)
    costs = _fit(recorded[:half], fitted, profile)
    rows, found = [], {}
    for (drafter, policy), run in measured.items():
        replay = Replay(drafter, PREDICTED[policy](), costs[drafter])
        _walk(replay, recorded, half)
        step = replay.mean_step
        found[f"{drafter}, {policy}"] = {"measured": run.ms_per_token, "predicted": replay.ms_per_token}
        cells = [
            f"{run.ms_per_token:.1f}",
            f"{replay.ms_per_token:.1f}",
            f"{100 * (replay.ms_per_token / run.ms_per_token - 1):+.1f} %",
            f"{run.tokens_per_pass:.2f} / {replay.num_tokens / replay.num_steps:.2f}",
            f"{run.draft_ms:.1f} / {step.draft_ms:.1f}",
            f"{run.rest_ms:.1f} / {step.rest_ms:.1f}",
        ]
        rows.append([drafter, policy, *cells])
    header = ["drafter", "policy", "measured, ms per token", "predicted", "error", "tokens per pass, both"]
    errors = [abs(pair["predicted"] / pair["measured"] - 1) for pair in found.values()]
    text = markdown_table([*header, "draft, ms per step", "all else, ms per step"], rows)
    text += f"\nLargest error {100 * max(errors):.1f} %, load {load_average()}.\n"
    return text, found


def _measure(
    model: Any,
    head: Eagle3,
    recorded: Sequence[dict[str, Any]],
    made: dict[str, Make],
    half: int,
    progress: Any,
    *,
    is_first: bool,
) -> dict[Key, Measured]:
    """Runs of the first half of the texts, or of the second after the first; all policies by turns."""
    drafters: dict[str, Make] = {
        "head": lambda: Eagle3(head.head, head.hidden_layers),
        "lookups": lambda: warm_start().drafters(),
        "merged": lambda: [Eagle3(head.head, head.hidden_layers), *warm_start().drafters()],
    }
    runs = {
        (drafter, policy): TreeSpeculation(make(), tree=tree())
        for drafter, make in drafters.items()
        for policy, tree in made.items()
    }
    found = {key: Measured() for key in runs}
    texts = recorded[:half] if is_first else recorded
    task = progress.add_task("fit" if is_first else "predict", total=len(texts))
    for turn, text in enumerate(texts):
        keys = list(runs)
        first = turn * 5 % len(keys)
        for key in keys[first:] + keys[:first]:
            ids = torch.tensor([text["prompt"]])
            ending = {"max_new_tokens": len(text["text"]), "do_sample": False, "custom_generate": runs[key]}
            start = perf_counter()
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **ending)
            seconds = perf_counter() - start
            if out[0, ids.shape[1] :].tolist() != text["text"]:
                raise ValueError(f"{key}: another text than the recorded one")
            if is_first or turn >= half:
                found[key].add(runs[key].stats, seconds)
        progress.advance(task)
    return found


def _fit(
    recorded: Sequence[dict[str, Any]], measured: dict[Key, Measured], profile: dict[int, float]
) -> dict[str, Costs]:
    """Costs by drafter: of the parts from the head and the lookups alone, of merging from the merged drafter."""
    of = {drafter: list[MeanStep]() for drafter in DRAFTERS}
    for (drafter, policy), run in measured.items():
        step = _replayed(recorded, drafter, policy, EXAMPLE)
        of[drafter].append(replace(step, draft_ms=run.draft_ms, rest_ms=run.rest_ms))
    start, _, node = fit_draft(of["lookups"], has_passes=False)
    lookup = (start / 2, 0.0, node / 2)
    draft = {HEAD: fit_draft(of["head"], has_passes=True), RECYCLING: lookup, SUFFIX: lookup}
    made = {drafter: Costs(fit_passes(profile, of[drafter]), draft) for drafter in DRAFTERS}
    alone = [_replayed(recorded, "merged", policy, made["merged"]).draft_ms for policy in FITTED]
    return {**made, "merged": fit_merge(made["merged"], alone, of["merged"])}


def _replayed(recorded: Sequence[dict[str, Any]], drafter: str, policy: str, costs: Costs) -> MeanStep:
    replay = Replay(drafter, FITTED[policy](), costs)
    _walk(replay, recorded, 0)
    return replay.mean_step


def _walk(replay: Replay, recorded: Sequence[dict[str, Any]], start: int) -> None:
    """Through all texts; those before `start` teach and do not count."""
    for number, text in enumerate(recorded):
        if number == start:
            replay.reset()
        replay.walk(text)
