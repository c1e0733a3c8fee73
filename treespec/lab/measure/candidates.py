"""Ways to decode that were measured in pairs with plain decoding, and the choice among them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

from treespec.engine.stats import SpeculationStats
from treespec.lab.measure.paired import Estimate, Runs, mean_ratio, ms_per_token, paired_speeds, ratios, tokens_per_pass
from treespec.lab.setting import AUTO, Setting


@dataclass(frozen=True)
class Limits:
    """Limits of the recommended setting, see `Control`."""

    max_nodes: int | None = None
    max_latency_ms: float | None = None

    @property
    def longest_ms(self) -> float:
        return self.max_latency_ms or math.inf

    def way(self, drafters: tuple[str, ...], tree: str) -> Setting:
        """A way to decode within the limits."""
        return Setting(drafters, tree, max_nodes=self.max_nodes, max_latency_ms=self.max_latency_ms)


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Candidate:
    """A way that was measured in pairs.

    `speed`: times plain decoding, the geometric mean over prompts and rounds; `speeds`: one by one. `step_ms`: the mean
    of its steps, prefill left out. `is_right`: greedy outputs are plain's.
    """

    way: Setting
    speed: Estimate
    speeds: list[float]
    ms_per_token: float
    tokens_per_pass: float
    step_ms: float
    is_right: bool

    def as_dict(self) -> dict[str, Any]:
        numbers = {name: round(getattr(self, name), 3) for name in ("ms_per_token", "tokens_per_pass", "step_ms")}
        speed = {name: round(value, 3) for name, value in self.speed._asdict().items()}
        return {"name": self.way.name, "speed": speed, **numbers, "is_right": self.is_right}


def make_candidate(way: Setting, runs: Runs, stats: Sequence[SpeculationStats], is_right: bool) -> Candidate:
    """A candidate's numbers from its paired runs and its statistics."""
    speeds = list(chain.from_iterable(paired_speeds(runs, way.name)))
    seconds = sum(sum(one.seconds.values()) - one.seconds["prefill"] for one in stats)
    return Candidate(
        way=way,
        speed=mean_ratio(speeds),
        speeds=speeds,
        ms_per_token=median(map(ms_per_token, runs[way.name].values())),
        tokens_per_pass=median(map(tokens_per_pass, runs[way.name].values())),
        step_ms=1e3 * seconds / max(sum(one.num_target_passes for one in stats), 1),
        is_right=is_right,
    )


def pick(candidates: Sequence[Candidate], limits: Limits = NO_LIMITS) -> Candidate | None:
    """The fastest candidate whose output is right and whose steps are short enough; None: plain decoding is faster.

    A fixed chain or tree must be faster than "auto" beyond the paired noise: "auto" adapts to what was not measured.
    """
    right = [c for c in candidates if c.is_right and (c.way.tree == AUTO or c.step_ms <= limits.longest_ms)]
    right.sort(key=lambda candidate: -candidate.speed.value)
    best = next(iter(right), None)
    auto = next((candidate for candidate in right if candidate.way.tree == AUTO), None)
    if best is not None and auto is not None and not is_faster(best, auto):
        best = auto
    return None if best is None or best.speed.value <= 1 else best


def is_faster(one: Candidate, other: Candidate) -> bool:
    """Whether one candidate is faster than another on the same prompts beyond the paired noise."""
    return mean_ratio(ratios(one.speeds, other.speeds)).low > 1
