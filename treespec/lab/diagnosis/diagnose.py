"""`diagnose`: the causes in order, and the speed-up now, with each change, and with perfect drafts."""

from dataclasses import asdict, dataclass
from typing import Any

from treespec.engine.stats import PHASES
from treespec.errors import ConfigError
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.lab.diagnosis.drafts import DRAFT_CAUSES, explanation, temperature_alone
from treespec.lab.diagnosis.evidence import Evidence, evidence_of
from treespec.lab.diagnosis.speed import LEAST_GAIN, Case, Cause
from treespec.lab.diagnosis.times import TIME_CAUSES, prompt_long

LEAST_STEPS = 8
EXPLAINED = ("acceptance low", "drafts too deep", "hardly any drafts")
"""Causes that `explanation` may replace: effects of a draft that does not fit, or of a hostile text."""


@dataclass(frozen=True)
class Diagnosis:
    """Why a run is slow.

    Args:
        causes: the one whose removal helps most first; empty where nothing holds the run back.
        speedup: the run's speed in plain decoding's, prompts included: predicted from the measured pass times.
        perfect_speedup: with drafts that are always right and cost nothing.
        tokens_per_pass: of one row.
        num_tokens: emitted, of all rows.
        num_passes: of the target.
        ms_per_token: of one row, all phases.
        shares: of the time by phase.
        unknown: what was not measured, and how to have it measured.
    """

    causes: list[Cause]
    speedup: float
    perfect_speedup: float
    tokens_per_pass: float
    num_tokens: int
    num_passes: int
    ms_per_token: float
    shares: dict[str, float]
    unknown: list[str]

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {share:.0%}" for phase, share in self.shares.items() if share >= 0.005)
        lines = [
            f"{self.num_tokens} tokens in {self.num_passes} passes, {self.tokens_per_pass:.2f} per pass and row, "
            f"{self.ms_per_token:.1f} ms per token",
            f"time: {phases}",
            f"expected speed: {self.speedup:.2f} times plain decoding; perfect drafts would give "
            f"{self.perfect_speedup:.1f} times",
        ]
        if not self.causes and self.num_passes >= LEAST_STEPS:
            lines.append("Nothing holds this run back.")
        for number, cause in enumerate(self.causes, start=1):
            lines += [
                f"{number}. {cause.name}: {cause.evidence}.",
                f"   change: {cause.change}.",
                f"   expected with it: {cause.speedup:.2f} times plain decoding.",
            ]
        return "\n".join([*lines, *(f"not known: {text}" for text in self.unknown)])


def diagnose(source: TreeSpeculation | Evidence) -> Diagnosis:
    """Find what slowed a speculation's last call, and the setting to change: `print(treespec.diagnose(speculation))`.

    It works after any call. With `trace=` it reads the trace, all of its calls, and knows more: which drafter is
    right, whether the draft's distribution fits, how sure the target was. The first time for a model on a machine
    it measures the model's passes, as `tree="auto"` does, for at most some seconds. Of processes that run a model
    together the first one writes the trace, and all call this. Evidence of another kind: see `of_stats`, `of_trace`.

    Raises:
        ConfigError: not a `TreeSpeculation`, or nothing was decoded yet, or no more than the first token.
        TraceError: the trace is damaged or gone.
    """
    run = source if isinstance(source, Evidence) else evidence_of(source)
    if not run.num_steps:
        raise ConfigError("diagnose() needs a step with a draft: the prompt's pass gave all that was decoded")
    case = Case.of(run)
    ms = {phase: run.ms(phase) for phase in (*PHASES, "other")}
    total = sum(ms.values())
    return Diagnosis(
        causes=_causes(case),
        speedup=case.speed.speedup,
        perfect_speedup=case.perfect_speedup,
        tokens_per_pass=run.tokens_per_step,
        num_tokens=run.stats.num_emitted_tokens,
        num_passes=run.num_steps,
        ms_per_token=total / run.tokens_per_step,
        shares={phase: taken / total for phase, taken in ms.items()},
        unknown=list(_unknown(run)),
    )


def _causes(case: Case) -> list[Cause]:
    # After few passes only the share of the prompt is certain.
    finders = (*DRAFT_CAUSES, *TIME_CAUSES) if case.run.num_steps >= LEAST_STEPS else (prompt_long,)
    found = [cause for find in finders if (cause := find(case)) is not None]
    causes = [cause for cause in found if cause.speedup >= LEAST_GAIN * case.speed.speedup]
    causes.sort(key=lambda cause: -cause.speedup)
    if case.run.num_steps < LEAST_STEPS:
        return causes
    why = explanation(case) if any(cause.name in EXPLAINED for cause in causes) else temperature_alone(case)
    if why is None:
        return causes
    # The explanation takes the rank of what it explains, and comes before changes that help no more.
    first = min((n for n, c in enumerate(causes) if c.name in EXPLAINED or c.speedup <= why.speedup), default=0)
    others = [cause for cause in causes if cause.name not in EXPLAINED]
    return [*others[:first], why, *others[first:]]


def _unknown(run: Evidence) -> list[str]:
    found = []
    if run.num_steps < LEAST_STEPS:
        found.append(f"what {run.num_steps} passes are too few to say: decode a longer text")
    if run.pass_ms is None:
        found.append("the model's pass times by number of nodes: speeds count a pass of any size as equally long")
    if not run.has_trace:
        found.append(
            "whether the draft's distribution fits, which drafter is right, how sure the target is: record a trace, "
            "TreeSpeculation(..., trace=path)"
        )
    return found
