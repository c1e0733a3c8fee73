"""`tune`: the drafters, the tree and the rule that are fastest for a model on some prompts, by measurement.

First every set of drafters decodes all prompts once under `tree="auto"`, whose control predicts from what was accepted
and what passes took how fast each chain and tree would be. The best of them are then measured in pairs with plain
decoding and with each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from treespec.engine.stats import SpeculationStats
from treespec.errors import RuleMismatchError, UnsupportedModelError
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.machine import OtherWork, is_busy, is_quiet
from treespec.lab.measure.candidates import NO_LIMITS, Candidate, Limits, is_faster, make_candidate, pick
from treespec.lab.measure.paired import PLAIN, Bench, Contestant, measure_checked, ms_per_token
from treespec.lab.named import default_drafters
from treespec.lab.pass_times import Profile, pass_profile
from treespec.lab.setting import AUTO, Setting, machine_facts, model_sizes
from treespec.lab.setting import PLAIN as PLAIN_TREE
from treespec.policies import Control

NUM_FINALISTS = 2
"""Sets of drafters whose chains and trees are measured in pairs: those predicted to be fastest."""
RULES = ("target_walk", "recursive", "block")
"""Rules that are compared with "auto" where children are sampled."""

FEWEST_PAIRS = 4
"""With fewer paired times an interval means nothing."""

Advance = Callable[[str, int, int], object]
"""Called with what is being done, the decodings done, and those there are to do."""


@dataclass(frozen=True)
class Tuned:
    """The recommended setting, the candidate that it is (None: plain decoding), and what a reader should know."""

    setting: Setting
    best: Candidate | None
    candidates: list[Candidate]
    warnings: list[str]


def drafter_sets(given: Sequence[str], model_name: str) -> list[tuple[str, ...]]:
    """Sets of drafters for a model: each alone, the default ones merged, and each given one merged with those."""
    base = default_drafters(model_name)
    sets = [*((name,) for name in (*given, *base)), base, *((name, *base) for name in given if name not in base)]
    return list(dict.fromkeys(sets))


def tune(
    bench: Bench,
    make_drafters: Callable[[Sequence[str]], list[Any]],
    sets: Sequence[tuple[str, ...]],
    *,
    limits: Limits = NO_LIMITS,
    num_rounds: int = 3,
    name: str = "",
    about: Mapping[str, Any] = MappingProxyType({}),
    advance: Advance = lambda *_: None,
) -> Tuned:
    """Find the fastest setting for the prompts of `bench`.

    Args:
        make_drafters: new drafters by their names.
        sets: the names of drafters to be compared, those of a set merged.
        name: the model's.
        about: more for the setting's `measured`.

    Raises `UnsupportedModelError`: the model scores single tokens only.
    """
    work, model = OtherWork(), bench.model
    profile = pass_profile(model, is_remeasured=is_quiet())
    if not profile.pass_ms:
        raise UnsupportedModelError(f"{name or type(model).__name__} scores single tokens only: nothing can be tuned")
    search = _Search(bench, make_drafters, limits, num_rounds, advance)
    forecasts = {names: search.forecast(names, profile, len(sets)) for names in sets}
    candidates, plain_ms = search.measure(_finalists(forecasts, limits))
    best = pick(candidates, limits)
    if best is not None and bench.sampling.get("do_sample"):
        best, ruled = search.best_rule(best)
        candidates += ruled
    share = work.share()
    warnings = _warnings(best, candidates, limits, plain_ms, max(share or 0.0, profile.others_share or 0.0))
    measured = {
        **about,
        "others_share": share,
        "passes": {"ms": profile.pass_ms, "others_share": profile.others_share},
        "plain": {"ms_per_token": round(plain_ms, 3)},
        "candidates": [candidate.as_dict() for candidate in candidates],
        "forecasts": {" + ".join(names): _shown(found) for names, found in forecasts.items()},
        **search.about(),
        "warnings": warnings,
    }
    way = limits.way(default_drafters(name), PLAIN_TREE) if best is None else best.way
    facts = {"model": name, "sizes": model_sizes(model), "machine": machine_facts(model), "measured": measured}
    return Tuned(replace(way, **facts), best, candidates, warnings)


class Forecast(NamedTuple):
    """A candidate's prediction per row: tokens per second, milliseconds and emitted tokens of a step."""

    tokens_per_second: float
    step_ms: float
    tokens_per_pass: float


@dataclass
class _Search:
    bench: Bench
    make_drafters: Callable[[Sequence[str]], list[Any]]
    limits: Limits
    num_rounds: int
    advance: Advance
    acceptance: dict[tuple[str, ...], list[list[float]]] = field(default_factory=dict)
    """By set of drafters, depth and rank, see `SpeculationStats.acceptance_per_depth_and_rank`."""
    num_done: int = 0

    def forecast(self, names: tuple[str, ...], profile: Profile, num_sets: int) -> dict[str, Forecast]:
        """Predicted speeds of every chain and tree with these drafters, after one decoding of all prompts."""
        control = Control(self.limits.max_nodes, pass_ms=profile.pass_ms)
        speculation = TreeSpeculation(self.make_drafters(names), tree=control)
        for prompt in self.bench.inputs:
            self._advance("acceptance of the drafters", num_sets * len(self.bench.inputs))
            self.bench.decode(prompt, {"custom_generate": speculation})
        shares = speculation.total_stats.acceptance_per_depth_and_rank
        self.acceptance[names] = [[round(share, 3) for share in ranks] for ranks in shares]
        found = zip(control.choice.tokens_per_second, *control.predict(), strict=True)
        return {name: Forecast(1e3 * rate, ms, rate * ms) for name, rate, ms in found}

    def measure(self, ways: Sequence[Setting]) -> tuple[list[Candidate], float]:
        """The ways measured in pairs, and plain decoding's milliseconds per token."""
        stats = [list[SpeculationStats]() for _ in ways]
        contestants = [Contestant(PLAIN, dict)]
        contestants += [Contestant(way.name, self._options(way, own)) for way, own in zip(ways, stats, strict=True)]
        total, self.num_done = self.bench.num_calls(len(contestants), self.num_rounds), 0
        advance = partial(self._advance, "the best, in pairs", total)
        runs, found = measure_checked(contestants, self.bench, self.num_rounds, advance)
        right = {name: all(agreement.is_right for agreement in mine.values()) for name, mine in found.items()}
        candidates = [make_candidate(w, runs, own, right[w.name]) for w, own in zip(ways, stats, strict=True)]
        return candidates, median(map(ms_per_token, runs[PLAIN].values()))

    def about(self) -> dict[str, Any]:
        """Acceptance, number of prompts and options of the search, for the setting's `measured`."""
        return {
            "acceptance": {" + ".join(names): shares for names, shares in self.acceptance.items()},
            "prompts": len(self.bench.inputs),
            "rounds": self.num_rounds,
            "new_tokens": self.bench.num_new,
            "sampling": dict(self.bench.sampling),
        }

    def best_rule(self, best: Candidate) -> tuple[Candidate, list[Candidate]]:
        """The candidate with the rule that is faster than "auto" beyond the noise, if one is; and all other rules."""
        ways = [best.way, *(way for rule in RULES if self._runs(way := replace(best.way, rule=rule)))]
        first, *others = self.measure(ways)[0]
        faster = [candidate for candidate in others if is_faster(candidate, first)]
        return max(faster, key=lambda candidate: candidate.speed.value, default=best), others

    def _runs(self, way: Setting) -> bool:
        try:
            self.bench.decode(next(iter(self.bench.inputs)), self._options(way, [])())
        except RuleMismatchError:
            return False
        return True

    def _options(self, way: Setting, stats: list[SpeculationStats]) -> Callable[[], dict[str, Any]]:
        def make() -> dict[str, Any]:
            drafters = self.make_drafters(way.drafters)
            speculation = TreeSpeculation(drafters, tree=way.policy(), verification=way.rule)
            stats.append(speculation.total_stats)
            return {"custom_generate": speculation}

        return make

    def _advance(self, what: str, total: int) -> None:
        self.num_done += 1
        self.advance(what, self.num_done, total)


def _finalists(forecasts: Mapping[tuple[str, ...], Mapping[str, Forecast]], limits: Limits) -> list[Setting]:
    """ "auto", the best tree and the best chain of the sets of drafters predicted to be fastest.

    A control that predicts trees alone leaves a chain as long as what the best tree emits.
    """
    allowed = {}
    for names, found in forecasts.items():
        short = {n: f for n, f in found.items() if n != PLAIN_TREE and f.step_ms <= limits.longest_ms}
        allowed[names] = {n: f.tokens_per_second for n, f in short.items()}
    ways = []
    for names in sorted(allowed, key=lambda names: -max(allowed[names].values(), default=0.0))[:NUM_FINALISTS]:
        ways.append(limits.way(names, AUTO))
        for kind in ("chain", "tree"):
            mine = {n: rate for n, rate in allowed[names].items() if n.startswith(kind)}
            if kind == "chain" and not mine and allowed[names]:
                best = forecasts[names][max(allowed[names], key=allowed[names].__getitem__)]
                mine = {f"{kind} of {max(round(best.tokens_per_pass), 1)}": 0.0}
            ways += [limits.way(names, max(mine, key=mine.__getitem__))] if mine else []
    return ways


def _shown(forecasts: Mapping[str, Forecast]) -> dict[str, dict[str, float]]:
    return {name: {key: round(v, 3) for key, v in found._asdict().items()} for name, found in forecasts.items()}


def _warnings(
    best: Candidate | None, candidates: Sequence[Candidate], limits: Limits, plain_ms: float, share: float
) -> list[str]:
    found = [f"the output of {c.way.name} differs from plain: try treespec check" for c in candidates if not c.is_right]
    if is_busy(share):
        found.append(
            f"other processes used {share:.0%} of the processors while this was measured: measure again when they are "
            "done"
        )
    if best is not None and len(best.speeds) < FEWEST_PAIRS:
        found.append(f"{len(best.speeds)} pairs of times say little: give more prompts or rounds")
    elif best is not None and best.speed.low <= 1:
        found.append(f"{best.way.name} is not faster than plain decoding beyond the noise: give more prompts or rounds")
    if limits.max_latency_ms is not None and plain_ms > limits.max_latency_ms:
        found.append(f"even plain decoding takes {plain_ms:.1f} ms per token, more than {limits.max_latency_ms:g}")
    return found
