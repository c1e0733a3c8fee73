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
        sizes = trees.num_nodes.tolist()
        is_chain = (
            (trees.parents[:, 1:] == trees.parents[:, :-1] + 1).logical_or(trees.parents[:, 1:] < 0).all(1).tolist()
        )
        self.num_trees += sum(not is_chain[row] for row in rows)
        self.num_draft_tokens += sum(sizes[row] - 1 for row in rows)
        self.num_accepted_tokens += sum(verdicts[row].num_accepted for row in rows)

    @property
    def mean_acceptance_length(self) -> float:
        """Accepted draft tokens plus one, per request and step."""
        return 1 + self.num_accepted_tokens / max(self.num_verified, 1)

    def as_dict(self) -> dict[str, float]:
        """All counts, and the mean acceptance length."""
        return {**asdict(self), "mean_acceptance_length": self.mean_acceptance_length}
