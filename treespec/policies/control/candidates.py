"""What may be drafted in a step: nothing, or a best-first tree of some size; a chain where only chains can be run."""

from typing import NamedTuple

from treespec.policies.best_first import CHILD_SHARE, BestFirst
from treespec.policies.chain import Chain
from treespec.tree import SELECTED

PLAIN = 0
"""The number of the candidate that drafts nothing."""
CHAIN_LENGTHS, TREE_SIZES = (1, 2, 3, 4, 6), (4, 8, 16, 32)


class StoppedBestFirst(BestFirst):
    """Best-first trees that grow only where it pays; tables without draft passes ignore that, sampled children too.

    Attributes:
        least_gain: a row grows while its last level raised the expected accepted tokens by more.
        num_passes: draft passes since this was set to 0.
    """

    def __init__(self, num_nodes: int) -> None:
        super().__init__(num_nodes, child_share=CHILD_SHARE)
        self.least_gain, self.num_passes = 0.0, 0

    def _least_gain(self, children: str) -> float:
        self.num_passes += 1
        return self.least_gain if children == SELECTED else 0.0


class Candidate(NamedTuple):
    """`num_nodes`: the most nodes, root included. `policy`: None for plain decoding."""

    name: str
    num_nodes: int
    policy: Chain | StoppedBestFirst | None


def candidates_of(max_nodes: int, is_chain_only: bool = False) -> list[Candidate]:
    """Plain decoding, then trees, or chains, of at most `max_nodes` nodes by size."""
    plain = Candidate("plain", 1, None)
    if is_chain_only:
        return [plain, *(Candidate(f"chain of {k}", k + 1, Chain(k)) for k in CHAIN_LENGTHS if k < max_nodes)]
    sizes = [size for size in TREE_SIZES if size < max_nodes] + [max_nodes] * (max_nodes > 1)
    return [plain, *(Candidate(f"tree of {size}", size, StoppedBestFirst(size)) for size in sizes)]
