"""Trees with the same branching at every node of a level (SpecInfer, Miao et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul

from treespec.checks import AUTO, check_count
from treespec.errors import ConfigError
from treespec.policies.paths import Paths

MAX_NODES = 4096


def check_branching(branching: Sequence[int]) -> tuple[int, ...]:
    """Raises: ConfigError, unless `branching` is a sequence of at least one positive int."""
    if not isinstance(branching, Sequence) or isinstance(branching, str) or not branching:
        raise ConfigError(f"branching must be a sequence with one positive int per level, got {branching!r}")
    return tuple(check_count("branching", width) for width in branching)


class KAry(Paths):
    """Every node of depth d gets `branching[d]` children, e.g. `(1, 1, 3, 1, 1)`.

    Args:
        branching: one positive int per level.
        children: see `Paths`.

    Raises:
        ConfigError: no level, a branching that is not a positive int, more than 4096 nodes, or unknown children.
    """

    def __init__(self, branching: Sequence[int], children: str = AUTO) -> None:
        widths = check_branching(branching)
        num_nodes = sum(accumulate(widths, mul, initial=1))
        if num_nodes > MAX_NODES:
            raise ConfigError(f"branching {widths} makes {num_nodes} nodes, more than {MAX_NODES}")
        levels = [widths[:depth] for depth in range(1, len(widths) + 1)]
        super().__init__([path for level in levels for path in product(*map(range, level))], children)
