"""How long a step takes and how fast a run is, compared with plain decoding, now and with one thing changed."""

from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple, Self

from treespec.lab.diagnosis.evidence import Evidence
from treespec.policies.control.pass_times import PassTimes

LEAST_GAIN = 1.15
"""A cause counts where its removal makes the run at least this many times as fast."""
LONGEST_DRAFT = 64
"""Tokens of the longest perfect draft that is considered."""


@dataclass(frozen=True)
class Cause:
    """One thing that holds a run back.

    `name` is short and always the same; `evidence` has the numbers that speak for it; `change` is what to do;
    `speedup` is the run's speed with the change, in today's plain decoding. What is attainable instead is a convention:
    what well-chosen settings usually reach.
    """

    name: str
    evidence: str
    change: str
    speedup: float


@dataclass(frozen=True)
class Speed:
    """A run's mean step in milliseconds, and what it emits.

    `prefill` is per step too, so that short answers have much of it; `tokens`: per row and step. Plain decoding is
    modelled as a pass over one node per row (`plain_pass`) with the same processors, stopping and streaming per token
    (`plain_host`).
    """

    draft: float
    target: float
    verify: float
    commit: float
    other: float
    prefill: float
    tokens: float
    plain_pass: float
    plain_host: float

    @classmethod
    def of(cls, run: Evidence, passes: PassTimes) -> Self:
        ms = {phase: run.ms(phase) for phase in ("draft", "target", "verify", "commit", "other", "prefill")}
        tokens = run.tokens_per_step
        host = (ms["verify"] + ms["commit"]) / tokens
        return cls(**ms, tokens=tokens, plain_pass=passes.predict(run.rows_per_step), plain_host=host)

    @property
    def step(self) -> float:
        """Milliseconds without the prefill."""
        return self.draft + self.target + self.verify + self.commit + self.other

    @property
    def plain(self) -> float:
        """Milliseconds per token."""
        return self.plain_pass + self.plain_host

    @property
    def speedup(self) -> float:
        """Times as fast as plain decoding, prompts included."""
        return (self.prefill + self.tokens * self.plain) / (self.prefill + self.step)

    @property
    def decoding_speedup(self) -> float:
        """Times as fast as plain decoding, prompts excluded."""
        return self.tokens * self.plain / self.step

    def but(self, **changes: float) -> float:
        """The speed-up with some of the numbers changed."""
        return replace(self, **changes).speedup


class Case(NamedTuple):
    """The input of a search for causes; `rows` are at work in a step."""

    run: Evidence
    speed: Speed
    passes: PassTimes
    rows: float

    @classmethod
    def of(cls, run: Evidence) -> Self:
        mean_ms, mean_nodes = run.ms("target"), run.nodes_per_row * run.rows_per_step
        # Without a profile passes count as flat: one of any size takes what this run's took.
        passes = PassTimes(run.pass_ms or {1: mean_ms, 2: mean_ms})
        passes.scale *= mean_ms / passes.predict(mean_nodes)  # The measured curve, scaled to this run.
        return cls(run, Speed.of(run, passes), passes, run.rows_per_step)

    def pass_ms(self, nodes_per_row: float) -> float:
        return self.passes.predict(self.rows * nodes_per_row)

    def with_one_row(self) -> Self:
        """The same drafts for a single text: drafting gets cheaper as a plain pass does, other work by the rows."""
        plain, target = (self.passes.predict(nodes) for nodes in (1, self.run.nodes_per_row))
        shares = {name: getattr(self.speed, name) / self.rows for name in ("prefill", "verify", "commit", "other")}
        shares |= {"draft": self.speed.draft * plain / self.speed.plain_pass, "plain_pass": plain}
        shares |= {"target": target, "plain_host": self.speed.plain_host / self.rows}
        return self._replace(speed=replace(self.speed, **shares), rows=1.0)

    def with_acceptance(self, least: float) -> float:
        """Tokens per step and row of the same drafts, if at least this share of them went on at every depth."""
        tokens, right = 1.0, 1.0
        for depth, count in sorted(self.run.stats.num_drafted_at_depth.items()):
            right *= max(self.run.acceptance(depth), least)
            tokens += right * count / self.run.num_rows
        return tokens

    def best_size(self) -> tuple[int, float]:
        """How many of the trees' first nodes are worth their time, and the speed-up with as many."""
        sizes = range(1, int(self.run.nodes_per_row) + 1)
        return max(((n, self._speedup_with_nodes(n)) for n in sizes), key=lambda found: found[1])

    def _speedup_with_nodes(self, num_nodes: int) -> float:
        """The speed-up of trees cut to their first nodes, which have fewer levels to draft."""
        counts = self.run.stats.num_accepted_at_node
        accepted = sum(count for node, count in counts.items() if node < num_nodes)
        draft = self.speed.draft * self._share_of_levels(num_nodes)
        return self.speed.but(draft=draft, target=self.pass_ms(num_nodes), tokens=1 + accepted / self.run.num_rows)

    def _share_of_levels(self, num_nodes: int) -> float:
        """Levels of smaller trees of the same shape: drafted nodes to the power that gives this run's levels."""
        drafted, levels = self.run.nodes_per_row - 1, max(self.run.levels_per_row, 1.0)
        if num_nodes == 1 or drafted <= 1:
            return float(num_nodes > 1)
        return min(((num_nodes - 1) / drafted) ** (log(levels) / log(drafted)), 1.0)

    @property
    def perfect_speedup(self) -> float:
        """The speed with drafts that are always right, cost nothing and have the best length."""
        return max(self._perfect(length + 1) for length in range(1, LONGEST_DRAFT + 1))

    def _perfect(self, tokens: int) -> float:
        speed, prefill = self.speed, self.speed.prefill * tokens / self.speed.tokens
        return (prefill + tokens * speed.plain) / (prefill + self.pass_ms(tokens) + speed.plain_host * tokens)
