"""Statistics of a server's trees besides vLLM's metrics: in the log, `/metrics` and `collective_rpc("tree_stats")`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from treespec.tree import TreeBatch, Verdict

logger = logging.getLogger("vllm.treespec")


@dataclass
class ServingStats:
    """Sums over steps of requests; chunks of prompts do not count.

    `num_trees`: trees with a branch. `num_cut`: trees for which too few scratch blocks were free, so that chains were
    drafted. `pass_ms`: of steps that read no prompt, but for their drafts; `draft_ms`: of drafts, on the first rank.
    """

    num_steps: int = 0
    num_verified: int = 0
    num_trees: int = 0
    num_cut: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    pass_ms: float = 0.0
    draft_ms: float = 0.0

    def __post_init__(self) -> None:
        self._reported, self._next_report = asdict(self), 0.0

    def record(self, trees: TreeBatch | None, verdicts: Sequence[Verdict], rows: Sequence[int]) -> None:
        """Count one step's rows; no trees: nothing was drafted."""
        self.num_steps += 1
        self.num_verified += len(rows)
        if trees is None or trees.max_nodes == 1:
            return
        chosen = trees.select_rows(list(rows))
        has_branch = (chosen.parents[:, 1:] != chosen.parents[:, :-1] + 1) & (chosen.parents[:, 1:] >= 0)
        self.num_trees += int(has_branch.any(1).sum())
        self.num_draft_tokens += int(chosen.num_nodes.sum()) - len(rows)
        self.num_accepted_tokens += sum(verdicts[row].num_accepted for row in rows)

    def as_dict(self) -> dict[str, float]:
        """All counts, and the mean acceptance length: accepted draft tokens plus one, per request and step."""
        return {**asdict(self), "mean_acceptance_length": 1 + self.num_accepted_tokens / max(self.num_verified, 1)}

    def report(self, now: float, interval: float) -> None:
        """Once per `interval` seconds in which something was drafted: a line in the log, and Prometheus's counters."""
        if now < self._next_report or self.num_draft_tokens == self._reported["num_draft_tokens"]:
            return
        counts = asdict(self)
        new = ServingStats(**{name: count - self._reported[name] for name, count in counts.items()})
        self._reported, self._next_report = counts, now + interval
        for name, count in asdict(new).items():
            _counter(name).inc(count)
        logger.info(
            "Trees: %(num_trees)d of %(num_verified)d texts got one with branches, %(num_cut)d a chain for lack of "
            "scratch blocks; %(num_draft_tokens)d nodes drafted, %(num_accepted_tokens)d accepted, "
            "%(mean_acceptance_length).2f tokens per text and step",
            new.as_dict(),
        )


@functools.cache
def _counter(name: str) -> Any:
    """In the registry of this process, and in that of the server where `PROMETHEUS_MULTIPROC_DIR` is set."""
    from prometheus_client import Counter  # vLLM's own dependency.

    return Counter(f"treespec:{name}", "See ServingStats in treespec/vllm/stats.py.")
