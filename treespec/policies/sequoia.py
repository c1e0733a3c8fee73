"""The best fixed tree for measured acceptance (Sequoia, Chen et al. 2024, section 4.1)."""

from collections.abc import Sequence
from itertools import pairwise
from numbers import Real
from typing import Any, Protocol, Self

from treespec.checks import AUTO, check_count
from treespec.errors import ConfigError
from treespec.policies.heap import grow_best_first
from treespec.policies.paths import Paths
from treespec.tree import Path

AcceptanceTable = Sequence[Sequence[float]] | Sequence[float]
"""`[depth - 1][rank]`: the probability that the child of this rank is the accepted one, given that its parent was
accepted; or `[rank]`, the same at every depth."""


class AcceptanceStats(Protocol):
    """The statistics of earlier calls that `Sequoia.from_stats` reads, see `SpeculationStats`."""

    @property
    def acceptance_per_depth_and_rank(self) -> list[list[float]]: ...


class Sequoia(Paths):
    """The tree with the most expected tokens for acceptance measured by depth and rank.

    Measure with wide trees, then use the best one:

        measuring = TreeSpeculation(drafter, tree=KAry((4, 3, 2, 1)))     # ... generate ...
        best = TreeSpeculation(drafter, tree=Sequoia.from_stats(measuring.total_stats, 16))

    `probs` and `num_nodes` as for `optimal_paths`; measure and use with the same `children`, see `Paths`.
    A tree of limited depth is `Paths(optimal_paths(probs, num_nodes, max_depth))`.

    Raises `ConfigError`: see `optimal_paths`; a tree without any child; unknown children.
    """

    def __init__(self, probs: AcceptanceTable, num_nodes: int, children: str = AUTO) -> None:
        paths = optimal_paths(probs, num_nodes)
        if not paths:
            raise ConfigError(f"no tree of {num_nodes} nodes has a child that is ever accepted: {probs!r}")
        super().__init__(paths, children)
        self.num_nodes = num_nodes

    @classmethod
    def from_stats(cls, stats: AcceptanceStats, num_nodes: int, children: str = AUTO) -> Self:
        """From what earlier calls accepted, no rank above an earlier one. Raises `ConfigError`: nothing was drafted."""
        table = [non_increasing(probs) for probs in stats.acceptance_per_depth_and_rank]
        if not table:
            raise ConfigError("nothing was drafted in these statistics: generate with a wide tree first")
        return cls(table, num_nodes, children)


def optimal_paths(probs: AcceptanceTable, num_nodes: int, max_depth: int | None = None) -> list[Path]:
    """The rank paths whose probabilities add up to the most, in order of falling probability.

    A path's probability is the product over its nodes. As it falls towards children and later siblings alike, the
    `num_nodes - 1` most probable paths hold their parents and earlier siblings: a heap finds in O(n log n) what the
    paper's dynamic programme finds in O(n^2 D R), and for any table by depth.

    `num_nodes` includes the root; paths of probability zero are left out. Rows of the table may differ in length. By
    default the tree is as deep as the table, or of any depth where it has one row for all.

    Raises `ConfigError`: entries that are not probabilities or that rise with rank, counts that are not positive.
    """
    rows = _read_table(probs, check_count("num_nodes", num_nodes))
    limit = len(rows) if max_depth is None else min(check_count("max_depth", max_depth), len(rows))

    def children_of(depth: int) -> list[tuple[float, int, int]]:
        return [(prob, rank, depth + 1) for rank, prob in enumerate(rows[depth]) if prob > 0]

    tree = grow_best_first(0, 0, children_of, num_nodes, limit)
    paths: list[Path] = [()]
    for rank, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        paths.append((*paths[parent], rank))
    return paths[1:]


def non_increasing(values: Sequence[float]) -> list[float]:
    """The nearest sequence in least squares that never rises; `values` are one at least."""
    from scipy.optimize import isotonic_regression  # Here, as it takes long to import.

    return isotonic_regression(values, increasing=False).x.tolist()


def _read_table(probs: AcceptanceTable, max_depth: int) -> list[list[float]]:
    """One row per depth; `max_depth` of them where one row is for all."""
    try:
        table: list[Any] = list(probs)
        is_per_depth = bool(table) and not any(isinstance(row, Real) for row in table)
        rows = [[float(prob) for prob in row] for row in (table if is_per_depth else [table])]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"expected acceptance by depth and rank or by rank alone, got {probs!r}") from error
    for row in rows:
        is_falling = all(later <= earlier for earlier, later in pairwise(row))
        if not is_falling or not all(0 <= prob <= 1 for prob in row):
            raise ConfigError(f"acceptance must lie in [0, 1] and not rise with rank, got {row}")
    return rows if is_per_depth else rows * max_depth
