"""What a diagnosis knows of a run: sums over its steps, from its statistics or, with more detail, from its trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from treespec.engine.stats import PHASES, SpeculationStats
from treespec.errors import TraceError
from treespec.lab.trace.records import Trace, TracedStep, pass_ms_of


class Fit(NamedTuple):
    """A drafted child of an accepted node: both models' probabilities of its token."""

    draft: float
    target: float
    is_sampled: bool


@dataclass
class Evidence:
    """Sums over the steps of a run.

    Args:
        num_steps: target passes.
        num_rows: rows at work, summed over the passes.
        num_emitted: emitted tokens, all rows'.
        num_prompt: tokens of the prompts, of the longest row of every call.
        num_answer: emitted tokens, of one row on average per call, summed over calls.
        num_nodes: nodes that were verified, roots included.
        num_undrafted: rows of steps that had no draft.
        ms: by phase; "processors" and "other" as in `TracedStep.seconds`, of a trace only.
        drafted: by depth: drafts that had a node there.
        tried: by depth: drafts that had a child below an accepted node of the depth above.
        accepted: by depth: those that accepted it.
        accepted_at_node: accepted tokens by node id.
        pass_ms: the target's measured passes of one row, by number of nodes.
        fits: of the children of accepted nodes; None without a trace.
        emitted_probs: the target's probabilities of the emitted tokens; None without a trace.
        by_drafter: per drafter its nodes and the accepted ones, all and those no other proposed; None without a trace.
        num_waits: copies from the device that the host waited for; None without a trace.
        about: what is known of the call, see `TracedCall`.
    """

    num_steps: int = 0
    num_rows: int = 0
    num_emitted: int = 0
    num_prompt: int = 0
    num_answer: float = 0.0
    num_nodes: int = 0
    num_undrafted: int = 0
    ms: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    drafted: Counter[int] = field(default_factory=Counter)
    tried: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    accepted_at_node: Counter[int] = field(default_factory=Counter)
    pass_ms: Mapping[int, float] | None = None
    fits: list[Fit] | None = None
    emitted_probs: list[float] | None = None
    by_drafter: dict[str, Counter[str]] | None = None
    num_waits: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per row and step."""
        return self.num_emitted / self.num_rows

    @property
    def rows_per_step(self) -> float:
        return self.num_rows / self.num_steps

    @property
    def nodes_per_row(self) -> float:
        return self.num_nodes / self.num_rows

    @property
    def levels_per_row(self) -> float:
        """Depth of the drafts, 0 where there was none."""
        return self.drafted.total() / self.num_rows

    @property
    def undrafted_share(self) -> float:
        return self.num_undrafted / self.num_rows

    def acceptance(self, depth: int) -> float:
        """The share of drafts that went on, among those right up to the depth above with a child here."""
        return self.accepted[depth] / self.tried[depth] if self.tried[depth] else 0.0


def of_stats(stats: SpeculationStats, about: Mapping[str, Any], prompt_lengths: Sequence[int]) -> Evidence:
    """The evidence of an ordinary run."""
    return Evidence(
        num_steps=stats.num_target_passes,
        num_rows=stats.num_drafts,
        num_emitted=stats.num_emitted_tokens,
        num_prompt=max(prompt_lengths, default=0),
        num_answer=stats.num_emitted_tokens / max(len(prompt_lengths), 1),
        num_nodes=stats.num_drafts + stats.num_draft_tokens,
        num_undrafted=stats.num_drafts - stats.num_drafted_at_depth[1],
        ms=defaultdict(float, {phase: 1e3 * stats.seconds[phase] for phase in PHASES}),
        drafted=Counter(stats.num_drafted_at_depth),
        tried=Counter({d: n for (d, rank), n in stats.num_considered_at_depth_and_rank.items() if rank == 0}),
        accepted=Counter(stats.num_accepted_at_depth),
        accepted_at_node=Counter(stats.num_accepted_at_node),
        pass_ms=pass_ms_of(about),
        about=about,
    )


def of_trace(trace: Trace) -> Evidence:
    """The evidence of all calls of a trace. Raises `TraceError`: it has no step."""
    if not trace.steps:
        raise TraceError(f"{trace.path} holds no step: nothing was decoded")
    found = Evidence(fits=[], emitted_probs=[], by_drafter={}, num_waits=0, about=trace.calls[-1].about)
    for call in trace.calls:
        prompts = call.about.get("prompt_ids") or [[]]
        found.num_prompt += max(map(len, prompts)) if call.steps else 0
        found.num_answer += sum(len(step.emitted) for step in call.steps) / len(prompts)
        found.pass_ms = found.pass_ms or call.pass_ms
        last = None
        for step in call.steps:
            if step.step != last:  # Times are the batch's.
                last = step.step
                found.num_steps += 1
                found.num_waits = (found.num_waits or 0) + step.waits
                for phase, seconds in step.seconds.items():
                    found.ms[phase] += 1e3 * seconds
            _add(found, step)
    return found


def _add(found: Evidence, step: TracedStep) -> None:
    """Count one row of one step."""
    found.num_rows += 1
    found.num_emitted += len(step.emitted)
    found.num_nodes += step.num_nodes
    found.num_undrafted += step.num_nodes == 1
    found.drafted.update(range(1, max(step.depths) + 1))
    found.accepted.update(range(1, len(step.accepted) + 1))
    found.accepted_at_node.update(step.accepted)
    for depth, node in enumerate(step.path[: len(step.emitted)], start=1):
        children = step.children(node)
        found.tried[depth] += bool(children)
        for child in children:
            draft, target = step.draft_probs[child], step.target_probs[child]
            if found.fits is not None and draft is not None and target is not None:
                is_sampled = step.draft_index is not None and step.draft_index[child] >= 0
                found.fits.append(Fit(draft, target, is_sampled))
    if found.emitted_probs is not None:
        probs = [step.target_probs[node] for node in step.accepted]
        probs += [step.next_prob] if len(step.emitted) > len(step.accepted) else []
        found.emitted_probs += [prob for prob in probs if prob is not None]
    if found.by_drafter is not None:
        votes = Counter(node for nodes in step.drafters.values() for node in nodes)
        for name, nodes in step.drafters.items():
            alone = [node for node in nodes if votes[node] == 1]
            mine = found.by_drafter.setdefault(name, Counter())
            mine.update(nodes=len(nodes), accepted=len(set(nodes) & set(step.accepted)))
            mine.update(alone=len(alone), accepted_alone=len(set(alone) & set(step.accepted)))
