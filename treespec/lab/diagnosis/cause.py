"""What a cause is, and what counts as attainable instead: a convention, what well-chosen settings usually reach.

A cause counts where its removal makes the run at least `LEAST_GAIN` times as fast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

from treespec.lab.diagnosis.evidence import Evidence
from treespec.lab.diagnosis.speed import Passes, Speed

LEAST_GAIN = 1.15
USUAL_ACCEPTANCE = 0.6
"""The acceptance of a good drafter's children below an accepted node, at every depth."""
LOW_ACCEPTANCE = 0.4
USUAL_DRAFT, EXPENSIVE_DRAFT = 0.25, 0.5
"""The time of drafting, in passes of the target over one node per row."""
USUAL_HOST, EXPENSIVE_HOST = 0.1, 0.3
"""The time of the host's other work, of processors, and of a rule: each in plain passes too."""
FLAT = 1.4
"""A pass over a tree may take this many times a pass over one node."""
LARGE_BATCH = 4
LEAST_COUNT = 10
"""The fewest drafts from which a share is computed."""


@dataclass(frozen=True)
class Cause:
    """One thing that holds a run back.

    `name` is short and always the same; `evidence` has the numbers that speak for it; `change` is what to do;
    `speedup` is the run's speed with the change, in today's plain decoding.
    """

    name: str
    evidence: str
    change: str
    speedup: float


class Case(NamedTuple):
    """What the functions below look at."""

    run: Evidence
    speed: Speed
    passes: Passes
    rows: float
    """At work in a step."""

    def pass_ms(self, nodes_per_row: float) -> float:
        return self.passes(self.rows * nodes_per_row)

    def with_one_row(self) -> Case:
        """The same drafts for a single text: drafting gets cheaper as a plain pass does, other work by the rows."""
        plain = self.passes(1)
        shares = {name: getattr(self.speed, name) / self.rows for name in ("prefill", "verify", "commit", "other")}
        shares |= {"draft": self.speed.draft * plain / self.speed.plain_pass, "plain_pass": plain}
        shares |= {"target": self.passes(self.run.nodes_per_row), "plain_host": self.speed.plain_host / self.rows}
        return self._replace(speed=replace(self.speed, **shares), rows=1.0)


def best_size(case: Case) -> tuple[int, float]:
    """How many of the trees' first nodes are worth their time, and the speed-up with as many."""
    sizes = range(1, int(case.run.nodes_per_row) + 1)
    return max(((n, speedup_with_nodes(case, n)) for n in sizes), key=lambda found: found[1])


def speedup_with_nodes(case: Case, num_nodes: int) -> float:
    """The speed-up of trees cut to their first nodes, which have fewer levels to draft."""
    run, speed = case.run, case.speed
    accepted = sum(count for node, count in run.accepted_at_node.items() if node < num_nodes)
    draft = speed.draft * _share_of_levels(run, num_nodes)
    return speed.but(draft=draft, target=case.pass_ms(num_nodes), tokens=1 + accepted / run.num_rows)


def _share_of_levels(run: Evidence, num_nodes: int) -> float:
    """Levels of smaller trees of the same shape: drafted nodes to the power that gives this run's levels."""
    drafted, levels = run.nodes_per_row - 1, max(run.levels_per_row, 1.0)
    if num_nodes == 1 or drafted <= 1:
        return float(num_nodes > 1)
    return min(((num_nodes - 1) / drafted) ** (log(levels) / log(drafted)), 1.0)


def shares_by_drafter(run: Evidence) -> str:
    counts = run.by_drafter or {}
    if len(counts) < 2:
        return ""
    return "; accepted of what each drafter proposed: " + ", ".join(
        f"{name} {count['accepted'] / max(count['nodes'], 1):.1%} of {count['nodes']}" for name, count in counts.items()
    )
