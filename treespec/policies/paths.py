"""Trees of a fixed shape, known before anything is drawn: so the width is fixed with every way of choosing children."""

from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul
from typing import NamedTuple

from treespec.checks import AUTO, ShowsOptions, check_children, check_count
from treespec.errors import ConfigError, InvalidTreeError
from treespec.policies.growing import TreeBuilder
from treespec.protocols import DraftSource
from treespec.tree import Path, TreeBatch, parse_paths

MAX_NODES = 4096
"""The most nodes of a k-ary tree: a larger number is most likely a typing error."""


class Level(NamedTuple):
    """`positions`: which nodes of a level are expanded, counted within it; `widths`: how many children each gets."""

    positions: tuple[int, ...]
    widths: tuple[int, ...]


class Paths(ShowsOptions):
    """A tree given by its rank paths, as in vLLM's `speculative_token_tree` and Medusa's and EAGLE-1's fixed trees.

    The child of rank r is the r-th most probable token when children are selected and the r-th draw when sampled.

    Args:
        paths: e.g. `[(0,), (1,), (0, 0)]`, or its literal, see `parse_paths`.
        children: "auto" (sampled without replacement where there is a distribution to sample from, else selected),
            "selected", "iid", "without_replacement", or "mixed" (one sample of what is not selected, verified first,
            then the top).

    Raises:
        InvalidTreeError: not a list of rank paths, or an empty one.
        ConfigError: unknown children.
    """

    def __init__(self, paths: str | Sequence[Sequence[int]], children: str = AUTO) -> None:
        parsed = parse_paths(paths)
        if not parsed:
            raise InvalidTreeError("no rank path given: a tree needs a child of the root at least, such as [(0,)]")
        self.paths = parsed
        self._levels = levels_of_paths(parsed)
        self.max_nodes = len(parsed) + 1
        self.children = check_children(children)

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        return grow_shape(self._levels, self.children, source, max_depth)


class KAry(Paths):
    """Every node of depth d gets `branching[d]` children, e.g. `(1, 1, 3, 1, 1)` (SpecInfer, Miao et al. 2024).

    Raises `ConfigError`: no level, a branching that is not a positive int, more than 4096 nodes, or unknown children.
    """

    def __init__(self, branching: Sequence[int], children: str = AUTO) -> None:
        self.branching = widths = check_branching(branching)
        num_nodes = sum(accumulate(widths, mul, initial=1))
        if num_nodes > MAX_NODES:
            raise ConfigError(f"branching {widths} makes {num_nodes} nodes, more than {MAX_NODES}")
        levels = [widths[:depth] for depth in range(1, len(widths) + 1)]
        super().__init__([path for level in levels for path in product(*map(range, level))], children)


def check_branching(branching: Sequence[int]) -> tuple[int, ...]:
    """Raises `ConfigError`: `branching` is not a sequence of positive ints, or is empty."""
    if not isinstance(branching, Sequence) or isinstance(branching, str) or not branching:
        raise ConfigError(f"branching must be a sequence with one positive int per level, got {branching!r}")
    return tuple(check_count("branching", width) for width in branching)


def levels_of_paths(paths: Sequence[Path]) -> list[Level]:
    """Rank paths as levels, the root's first. A level holds the children of the last one's expanded nodes in order."""
    num_children: dict[Path, int] = {}
    for path in paths:
        num_children[path[:-1]] = num_children.get(path[:-1], 0) + 1
    levels: list[Level] = []
    level: list[Path] = [()]
    while positions := tuple(i for i, path in enumerate(level) if path in num_children):
        widths = tuple(num_children[level[i]] for i in positions)
        levels.append(Level(positions, widths))
        level = [(*level[i], rank) for i, width in zip(positions, widths, strict=True) for rank in range(width)]
    return levels


def grow_shape(levels: Sequence[Level], children: str, source: DraftSource, max_depth: int) -> TreeBatch:
    """Grow a tree of fixed shape, one expansion per level; nodes without a token of any probability become padding."""
    builder = TreeBuilder(source)
    nodes = builder.root
    for level in levels[:max_depth]:
        expanded = nodes[:, list(level.positions)]
        if builder.is_exhausted(expanded):
            break
        nodes = builder.grow(expanded, level.widths, children, is_read=False)
    return builder.build()
