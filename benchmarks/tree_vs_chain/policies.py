"""The tree policies that the benchmarks compare, each at any number of drafted tokens (nodes below the root)."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.common.acceptance import RANK_RATES, binary_paths, rank_paths
from treespec.literature import SpecExec, StochasticBeam, delayed_branching, eagle2, opt_tree
from treespec.policies import BestFirst, Chain, Paths, Sequoia
from treespec.policies.sequoia import AcceptanceTable
from treespec.protocols import TreePolicy
from treespec.tree import SELECTED

BUDGETS = (1, 2, 4, 8, 16, 32, 64)
CHAIN, SEQUOIA, BINARY = "chain", "sequoia", "k-ary"


class Shape(NamedTuple):
    """`policy(n, table)` is the policy of at most n drafted tokens; the table is measured acceptance.

    `is_fixed`: the shape depends on no probability.
    """

    policy: Callable[[int, AcceptanceTable], TreePolicy]
    is_fixed: bool = False


def delayed(num_drafted: int) -> TreePolicy:
    """A trunk of a quarter of the tokens, then branches of like length that use up the rest."""
    trunk = max(num_drafted // 4, 1)
    rest = num_drafted - trunk
    if rest < 2:
        return Chain(num_drafted, SELECTED)
    branches = max(width for width in range(1, min(len(RANK_RATES), rest) + 1) if rest // width >= min(trunk, rest))
    return delayed_branching(trunk, (branches,) + (1,) * (rest // branches - 1), SELECTED)


def beam(num_drafted: int) -> TreePolicy:
    """A beam about as wide as a quarter of its depth, two at least: RSD-S's trees are narrow."""
    width = min(num_drafted, max(2, round(num_drafted**0.5 / 2)))
    return StochasticBeam(width, num_drafted // width, SELECTED)


POLICIES: dict[str, Shape] = {
    CHAIN: Shape(lambda n, _: Chain(n, SELECTED), is_fixed=True),
    BINARY: Shape(lambda n, _: Paths(binary_paths(n + 1), SELECTED), is_fixed=True),
    SEQUOIA: Shape(lambda n, table: Sequoia(table, n + 1, children=SELECTED), is_fixed=True),
    "delayed branching": Shape(lambda n, _: delayed(n), is_fixed=True),
    "best first": Shape(lambda n, _: BestFirst(n + 1, SELECTED)),
    "eagle2": Shape(lambda n, _: eagle2(n + 1)),
    "opt_tree": Shape(lambda n, _: opt_tree(n + 1, min_gain=0.05)),
    "specexec": Shape(lambda n, _: SpecExec(n + 1)),
    "beam": Shape(lambda n, _: beam(n)),
}


def measuring_policy() -> TreePolicy:
    """A wide fixed tree, from whose accepted ranks `Sequoia`'s tables are made."""
    return Paths(rank_paths(65), SELECTED)
