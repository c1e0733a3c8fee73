"""What a server's trees did: in addition to vLLM's own metrics, for `collective_rpc("tree_stats")`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from treespec.tree import TreeBatch, Verdict


@dataclass
class ServingStats:
    """Sums over steps of requests; chunks of prompts do not count.

    `num_trees`: trees with a branch. `num_cut`: trees for which too few scratch blocks were free, so that chains were
    drafted.
    `pass_ms`, `draft_ms`: of whole steps, until their tokens were known, and of learning and drafting after that.
    """

    num_steps: int = 0
    num_verified: int = 0
    num_trees: int = 0
    num_cut: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    pass_ms: float = 0.0
    draft_ms: float = 0.0

    def record(self, trees: TreeBatch, verdicts: Sequence[Verdict], rows: Sequence[int]) -> None:
        """Count one step's rows."""
        self.num_steps += 1
        self.num_verified += len(rows)
        if trees.max_nodes == 1:
            return
        chosen = trees.select_rows(list(rows))
        has_branch = (chosen.parents[:, 1:] != chosen.parents[:, :-1] + 1) & (chosen.parents[:, 1:] >= 0)
        self.num_trees += int(has_branch.any(1).sum())
        self.num_draft_tokens += int(chosen.num_nodes.sum()) - len(rows)
        self.num_accepted_tokens += sum(verdicts[row].num_accepted for row in rows)

    def as_dict(self) -> dict[str, float]:
        """All counts, and the mean acceptance length: accepted draft tokens plus one, per request and step."""
        return {**asdict(self), "mean_acceptance_length": 1 + self.num_accepted_tokens / max(self.num_verified, 1)}
