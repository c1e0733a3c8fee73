"""What may be drafted in a step: nothing, or a best-first tree of some size; a chain where only chains can be run."""

from typing import NamedTuple

from treespec.policies.best_first import CHILD_SHARE, BestFirst
from treespec.policies.chain import Chain

PLAIN = 0
"""The number of the candidate that drafts nothing."""
CHAIN_LENGTHS, TREE_SIZES = (1, 2, 3, 4, 6), (2, 4, 8, 16, 32)
LEAST_DRAWN = 8
"""The smallest tree where a call samples: small drawn ones accept less than they predict, and show little of larger."""


class Candidate(NamedTuple):
    """`num_nodes`: the most nodes, root included. `policy`: None for plain decoding."""

    name: str
    num_nodes: int
    policy: Chain | BestFirst | None


def candidates_of(max_nodes: int, is_chain_only: bool = False, least: int = 1) -> list[Candidate]:
    """Plain decoding, then trees of `least` to `max_nodes` nodes, or chains, by size."""
    plain = Candidate("plain", 1, None)
    if is_chain_only:
        return [plain, *(Candidate(f"chain of {k}", k + 1, Chain(k)) for k in CHAIN_LENGTHS if k < max_nodes)]
    sizes = [size for size in TREE_SIZES if least <= size < max_nodes] + [max_nodes] * (max_nodes > 1)
    return [plain, *(Candidate(f"tree of {size}", size, BestFirst(size, child_share=CHILD_SHARE)) for size in sizes)]
