"""Trees of a fixed shape: lists of rank paths, k-ary trees and chains are all grown by `grow_shape`.

A shape is known before anything is drawn, so these trees keep `is_width_fixed` with every way of choosing children.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from treespec.checks import AUTO, check_children
from treespec.errors import InvalidTreeError
from treespec.policies.growing import TreeBuilder
from treespec.protocols import DraftSource
from treespec.tree import Path, TreeBatch, parse_paths


class Level(NamedTuple):
    """`positions`: which nodes of a level are expanded, counted within it; `widths`: how many children each gets."""

    positions: tuple[int, ...]
    widths: tuple[int, ...]


class Paths:
    """A tree given by its rank paths, as in vLLM's `speculative_token_tree` and Medusa's and EAGLE-1's fixed trees.

    The child of rank r is the r-th most probable token when children are selected and the r-th draw when sampled.

    Args:
        paths: e.g. `[(0,), (1,), (0, 0)]`, or its literal, see `parse_paths`.
        children: "auto" (sampled without replacement where there is a distribution to sample from, else selected),
            "selected", "iid", "without_replacement", or "mixed" (one sample of what is not selected, verified first,
            then the top).

    Raises:
        InvalidTreeError: not a list of rank paths, or an empty one. ConfigError: unknown children.
    """

    def __init__(self, paths: str | Sequence[Sequence[int]], children: str = AUTO) -> None:
        parsed = parse_paths(paths)
        if not parsed:
            raise InvalidTreeError("no rank path given: a tree needs a child of the root at least, such as [(0,)]")
        self._levels, self._num_nodes = levels_of_paths(parsed), len(parsed) + 1
        self.children = check_children(children)

    @property
    def max_nodes(self) -> int:
        return self._num_nodes

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """One tree per row, no deeper than `max_depth`; see `TreePolicy`."""
        return grow_shape(self._levels, self.children, source, max_depth)


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
        expanded = nodes[:, torch.tensor(level.positions, device=nodes.device)]
        if builder.is_exhausted(expanded):
            break
        nodes = builder.grow(expanded, level.widths, children)
    return builder.build()
