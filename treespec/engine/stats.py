"""Counters of speculative decoding. Metric names follow vLLM; depth, node and rank are kept apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

from treespec.engine.observer import Observer, StepRecord
from treespec.tree import TokenTree, Verdict

Key = TypeVar("Key", int, tuple[int, int])

PHASES = ("prefill", "draft", "target", "verify", "commit")


@dataclass
class SpeculationStats(Observer):
    """Counters of speculation, summed over rows and steps.

    A *draft* is one tree of one row. Accepted tokens are counted where they were emitted: those that a stopping
    criterion cut off do not count. The prompt's pass is none of the target's passes, and gives every row one token.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0
    num_first_tokens: int = 0
    num_target_passes: int = 0
    acceptance_histogram: Counter[int] = field(default_factory=Counter)
    """How many drafts had this many accepted tokens."""
    num_drafted_at_depth: Counter[int] = field(default_factory=Counter)
    """How many drafts had a node at this depth (1: the root's children)."""
    num_accepted_at_depth: Counter[int] = field(default_factory=Counter)
    num_drafted_at_node: Counter[int] = field(default_factory=Counter)
    """How many drafts had a node of this number (0: the root, not counted)."""
    num_accepted_at_node: Counter[int] = field(default_factory=Counter)
    num_accepted_at_rank: Counter[int] = field(default_factory=Counter)
    """Accepted nodes by their rank among their siblings; ranks of 1 and more are what a chain could not have had."""
    num_considered_at_depth_and_rank: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How many drafts had a child of this (depth, rank) below an accepted node, whether or not a rule came to it."""
    num_accepted_at_depth_and_rank: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How many drafts accepted a node of this (depth, rank)."""
    choices: Counter[str] = field(default_factory=Counter)
    """Steps by what `tree="auto"` chose: "plain", "chain of 4", "tree of 16", ..."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Wall-clock seconds by phase, see `PHASES`. On accelerators a phase ends when its work is queued, and the wait
    falls to the phase that reads a result ("verify")."""

    @property
    def mean_acceptance_length(self) -> float:
        """Accepted draft tokens per draft, plus one."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Share of the drafted tokens that were accepted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def block_efficiency(self) -> float:
        """Tokens per row and verifying target pass."""
        return (self.num_emitted_tokens - self.num_first_tokens) / self.num_drafts if self.num_drafts else 0.0

    @property
    def acceptance_per_depth(self) -> dict[int, float]:
        """Share of the drafts with a node at this depth whose accepted path reached it."""
        return _shares(self.num_accepted_at_depth, self.num_drafted_at_depth)

    @property
    def acceptance_per_node(self) -> dict[int, float]:
        """By node id: in what share of the trees that have this node it was accepted."""
        return _shares(self.num_accepted_at_node, self.num_drafted_at_node)

    @property
    def acceptance_per_depth_and_rank(self) -> list[list[float]]:
        """How often the child of rank r of an accepted node was the accepted one, by `[depth - 1][rank]`.

        What `Sequoia` grows its tree from; 0 where no such child was drafted.
        """
        shares = _shares(self.num_accepted_at_depth_and_rank, self.num_considered_at_depth_and_rank)
        num_ranks = Counter[int]()
        for depth, rank in shares:
            num_ranks[depth] = max(num_ranks[depth], rank + 1)
        return [[shares.get((depth, rank), 0.0) for rank in range(num_ranks[depth])] for depth in sorted(num_ranks)]

    def summary(self) -> str:
        """One line: tokens, passes, acceptance, milliseconds by phase, and what was chosen how often."""
        times = ", ".join(f"{phase} {1e3 * seconds:.0f}" for phase, seconds in self.seconds.items())
        chosen = ", ".join(f"{name} {count}x" for name, count in self.choices.most_common())
        return (
            f"{self.num_emitted_tokens} tokens in {self.num_target_passes} passes, "
            f"acceptance length {self.mean_acceptance_length:.2f}; ms: {times}" + (f"; {chosen}" if chosen else "")
        )

    def on_step(self, step: StepRecord) -> None:
        if step.is_prompt:
            self.num_first_tokens += len(step.rows)
            self.num_emitted_tokens += len(step.rows)
        else:
            self.record(step.trees, step.verdicts, step.emitted)
        for phase, seconds in step.seconds.items():
            self.seconds["prefill" if step.is_prompt else phase] += seconds
        if step.choice is not None:
            self.choices[step.choice.name] += 1

    def record(self, trees: Sequence[TokenTree], verdicts: Sequence[Verdict], emitted: Sequence[Sequence[int]]) -> None:
        """Count one target pass over `trees` and its verdicts."""
        self.num_target_passes += 1
        for tree, verdict, tokens in zip(trees, verdicts, emitted, strict=True):
            accepted = verdict.path[1 : 1 + len(tokens)]
            self.num_drafts += 1
            self.num_draft_tokens += tree.num_nodes - 1
            self.num_accepted_tokens += len(accepted)
            self.num_emitted_tokens += len(tokens)
            self.acceptance_histogram[len(accepted)] += 1
            self.num_drafted_at_depth.update(range(1, max(tree.depths) + 1))
            self.num_drafted_at_node.update(range(1, tree.num_nodes))
            self.num_accepted_at_depth.update(range(1, len(accepted) + 1))
            self.num_accepted_at_node.update(accepted)
            ranks = [tree.children(tree.parent_list[i]).index(i) for i in accepted]
            self.num_accepted_at_rank.update(ranks)
            self.num_accepted_at_depth_and_rank.update(enumerate(ranks, start=1))
            # A node at which the emitted tokens were cut off decided nothing about its children.
            for depth, node in enumerate(verdict.path[: len(tokens)], start=1):
                self.num_considered_at_depth_and_rank.update((depth, rank) for rank in range(len(tree.children(node))))

    def add(self, other: SpeculationStats) -> None:
        """Add another call's counters to these."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            elif name == "seconds":
                self.seconds = {phase: self.seconds[phase] + value[phase] for phase in PHASES}
            else:
                setattr(self, name, getattr(self, name) + value)


class Clock:
    """Wall-clock seconds by phase, since the call began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the block's time to `seconds[phase]`."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += perf_counter() - start


def _shares(part: Counter[Key], whole: Counter[Key]) -> dict[Key, float]:
    return {key: part[key] / count for key, count in sorted(whole.items())}
