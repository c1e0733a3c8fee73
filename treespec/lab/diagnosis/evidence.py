"""The evidence of a diagnosis: a run's counters and, with more detail, its trace."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from treespec.engine.observer import StepRecord
from treespec.engine.stats import PHASES, SpeculationStats
from treespec.errors import ConfigError, TraceError
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.lab.trace.about import Tracing, about_call
from treespec.lab.trace.file import read_trace
from treespec.lab.trace.records import Trace, TracedStep, pass_ms_of


class Fit(NamedTuple):
    """A drafted child of an accepted node: both models' probabilities of its token."""

    draft: float
    target: float
    is_sampled: bool


@dataclass
class TraceSums:
    """Numbers that only a trace reports.

    Args:
        fits: of the children of accepted nodes.
        emitted_probs: the target's probabilities of the emitted tokens.
        by_drafter: per drafter its nodes and the accepted ones, all and those that no other drafter proposed.
        num_waits: copies from the device that the host waited for.
        seconds: "processors" and "other", as in `TracedStep.seconds`.
    """

    fits: list[Fit] = field(default_factory=list)
    emitted_probs: list[float] = field(default_factory=list)
    by_drafter: dict[str, Counter[str]] = field(default_factory=dict)
    num_waits: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"processors": 0.0, "other": 0.0})

    def add(self, step: TracedStep) -> None:
        """Count one row of one step."""
        for node in step.path[: len(step.emitted)]:
            for child in step.children(node):
                draft, target = step.draft_probs[child], step.target_probs[child]
                if draft is not None and target is not None:
                    is_sampled = step.draft_index is not None and step.draft_index[child] >= 0
                    self.fits.append(Fit(draft, target, is_sampled))
        probs = [step.target_probs[node] for node in step.accepted]
        probs += [step.next_prob] if len(step.emitted) > len(step.accepted) else []
        self.emitted_probs += [prob for prob in probs if prob is not None]
        accepted = set(step.accepted)
        votes = Counter(node for nodes in step.drafters.values() for node in nodes)
        for name, nodes in step.drafters.items():
            alone, mine = {node for node in nodes if votes[node] == 1}, self.by_drafter.setdefault(name, Counter())
            mine.update(nodes=len(nodes), accepted=len(accepted.intersection(nodes)))
            mine.update(alone=len(alone), accepted_alone=len(accepted & alone))


@dataclass
class Evidence:
    """A run, or all calls of a trace.

    Args:
        stats: its counters.
        about: what is known of the call, see `TracedCall`.
        num_prompt: tokens of the prompts, of the longest row of every call.
        num_answer: emitted tokens, of one row on average per call, summed over calls.
        pass_ms: the target's measured passes of one row, by number of nodes; None: not measured.
        trace: what only a trace reports, empty without one (`has_trace`).
    """

    stats: SpeculationStats
    about: Mapping[str, Any]
    num_prompt: int = 0
    num_answer: float = 0.0
    pass_ms: Mapping[int, float] | None = None
    trace: TraceSums = field(default_factory=TraceSums)
    has_trace: bool = False

    @property
    def num_steps(self) -> int:
        return self.stats.num_target_passes

    @property
    def num_rows(self) -> int:
        """Rows at work, summed over the passes."""
        return self.stats.num_drafts

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per row and step."""
        return self.stats.block_efficiency

    @property
    def rows_per_step(self) -> float:
        return self.num_rows / self.num_steps

    @property
    def nodes_per_row(self) -> float:
        """Verified nodes, the root included."""
        return 1 + self.stats.num_draft_tokens / self.num_rows

    @property
    def levels_per_row(self) -> float:
        """Depth of the drafts, 0 where there was none."""
        return self.stats.num_drafted_at_depth.total() / self.num_rows

    @property
    def undrafted_share(self) -> float:
        """Rows of steps that had no draft."""
        return 1 - self.stats.num_drafted_at_depth[1] / self.num_rows

    def tried(self, depth: int) -> int:
        """Drafts that had a child below an accepted node of the depth above."""
        return self.stats.num_considered_at_depth_and_rank[depth, 0]

    def acceptance(self, depth: int) -> float:
        """The share of drafts that went on, among those right up to the depth above with a child here."""
        return self.stats.num_accepted_at_depth[depth] / self.tried(depth) if self.tried(depth) else 0.0

    def ms(self, phase: str) -> float:
        """Milliseconds per step; "processors" and "other" are known with a trace."""
        return 1e3 * {**self.stats.seconds, **self.trace.seconds}.get(phase, 0.0) / self.num_steps


def evidence_of(speculation: TreeSpeculation) -> Evidence:
    """The evidence of a speculation: its trace, where there is one, else the last call's statistics.

    Raises:
        ConfigError: not a `TreeSpeculation`, or nothing was decoded yet.
        TraceError: the trace is damaged or gone.
    """
    if not isinstance(speculation, TreeSpeculation):
        raise ConfigError(f"diagnose() looks at a TreeSpeculation, got {type(speculation).__name__}")
    call = speculation.last_call
    if call is None:
        raise ConfigError("diagnose() needs a call to look at: decode something with this object first")
    if isinstance(call.trace, Tracing):
        return of_trace(read_trace(call.trace.file.path))
    model = call.model_ref()
    about = {} if model is None else about_call(model, call, [])
    return of_stats(speculation.stats, about, call.mask.sum(1).tolist())


def of_stats(stats: SpeculationStats, about: Mapping[str, Any], prompt_lengths: Sequence[int]) -> Evidence:
    """The evidence of an ordinary run."""
    num_answer = stats.num_emitted_tokens / max(len(prompt_lengths), 1)
    return Evidence(stats, about, max(prompt_lengths, default=0), num_answer, pass_ms_of(about))


def of_trace(trace: Trace) -> Evidence:
    """The evidence of all calls of a trace. Raises `TraceError`: it has no step."""
    if not trace.steps:
        raise TraceError(f"{trace.path} holds no step: nothing was decoded")
    sums, stats = TraceSums(), SpeculationStats()
    found = Evidence(stats, trace.calls[-1].about, trace=sums, has_trace=True)
    for call in trace.calls:
        prompts = call.about.get("prompt_ids") or [[]]
        found.num_prompt += max(map(len, prompts)) if call.steps else 0
        found.num_answer += sum(len(step.emitted) for step in call.steps) / len(prompts)
        found.pass_ms = found.pass_ms or pass_ms_of(call.about)
        for number, group in groupby(call.steps, key=lambda step: step.step):
            rows = list(group)
            taken = rows[0].seconds  # The batch's.
            parts = [step.row for step in rows], [step.tree() for step in rows], [step.verdict for step in rows]
            phases = {phase: seconds for phase, seconds in taken.items() if phase in PHASES}
            stats.on_step(StepRecord(*parts, [step.emitted for step in rows], phases, is_prompt=not number))
            sums.num_waits += rows[0].waits
            for phase in sums.seconds:
                sums.seconds[phase] += taken.get(phase, 0.0)
            for step in rows:
                sums.add(step)
    return found
