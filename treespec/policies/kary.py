"""Trees with the same branching at every node of a level (SpecInfer, Miao et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from treespec.errors import ConfigError
from treespec.policies.checks import AUTO, check_children, check_count
from treespec.policies.paths import Level, grow_shape
from treespec.protocols import DraftSource
from treespec.tree import TreeBatch

MAX_NODES = 4096


def check_branching(branching: Sequence[int]) -> tuple[int, ...]:
    """Raises: ConfigError, unless `branching` is a sequence of at least one positive int."""
    if not isinstance(branching, Sequence) or isinstance(branching, str) or not branching:
        raise ConfigError(f"branching must be a sequence with one positive int per level, got {branching!r}")
    return tuple(check_count("branching", width) for width in branching)


class KAry:
    """Every node of depth d gets `branching[d]` children, e.g. `(1, 1, 3, 1, 1)`.

    Args:
        branching: one positive int per level.
        children: see `Paths`.

    Raises:
        ConfigError: no level, a branching that is not a positive int, more than 4096 nodes, or unknown children.
    """

    def __init__(self, branching: Sequence[int], children: str = AUTO) -> None:
        widths = check_branching(branching)
        sizes = list(accumulate(widths, mul, initial=1))
        if sum(sizes) > MAX_NODES:
            raise ConfigError(f"branching {widths} makes {sum(sizes)} nodes, more than {MAX_NODES}")
        self._levels = [Level(tuple(range(n)), (k,) * n) for n, k in zip(sizes, widths, strict=False)]
        self._num_nodes = sum(sizes)
        self.children = check_children(children)

    @property
    def max_nodes(self) -> int:
        return self._num_nodes

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """One tree per row, no deeper than `max_depth`; see `TreePolicy`."""
        return grow_shape(self._levels, self.children, source, max_depth)
