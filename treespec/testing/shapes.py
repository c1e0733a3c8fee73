"""How toy trees grow: fixed shapes, and shapes that look at what was drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from treespec.testing.trees import ToyTree
from treespec.tree import Path, parse_paths


class Shape(ABC):
    """How a toy tree grows, breadth first. Widths may look at every token drawn so far."""

    is_width_fixed = True
    """Whether no node's width depends on its own draws."""

    @abstractmethod
    def width(self, tree: ToyTree, node: int) -> int:
        """How many children are planned for `node`, asked before its first draw."""

    def is_done(self, tree: ToyTree, node: int) -> bool:
        """Whether to stop before the planned width, asked before every draw."""
        return False


@dataclass(frozen=True)
class FixedShape(Shape):
    """The shape of a list of rank paths, e.g. `[(0,), (1,), (0, 0)]`."""

    paths: tuple[Path, ...]

    @classmethod
    def from_paths(cls, paths: str | Sequence[Sequence[int]]) -> FixedShape:
        return cls(tuple(parse_paths(paths)))

    @classmethod
    def kary(cls, *branching: int) -> FixedShape:
        """`branching[d]` children for every node of depth d: `kary(1, 1)` is a chain of two."""
        level: list[Path] = [()]
        paths: list[Path] = []
        for width in branching:
            level = [(*path, rank) for path in level for rank in range(width)]
            paths += level
        return cls(tuple(paths))

    def width(self, tree: ToyTree, node: int) -> int:
        return sum(path[:-1] == tree.ranks[node] for path in self.paths)


@dataclass(frozen=True)
class AdaptiveDepth(Shape):
    """A node is expanded only while the tokens drawn so far, anywhere, sum to an even number."""

    num_children: int = 2
    max_depth: int = 2

    def width(self, tree: ToyTree, node: int) -> int:
        is_open = node == 0 or (len(tree.contexts[node]) < self.max_depth and sum(tree.tokens) % 2 == 0)
        return self.num_children if is_open else 0


@dataclass(frozen=True)
class AdaptiveWidth(Shape):
    """Draws siblings until token 0 came or `max_children` are there: the width depends on the node's own draws."""

    max_children: int = 2
    max_depth: int = 2
    is_width_fixed = False

    def width(self, tree: ToyTree, node: int) -> int:
        return self.max_children if len(tree.contexts[node]) < self.max_depth else 0

    def is_done(self, tree: ToyTree, node: int) -> bool:
        return any(tree.tokens[child] == 0 for child in tree.children(node))


SHAPES: dict[str, Shape] = {
    "chain": FixedShape.kary(1, 1, 1),
    "2x2": FixedShape.kary(2, 2),
    "3-1-1": FixedShape.kary(3, 1, 1),
    "unbalanced": FixedShape.from_paths("[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]"),
    "adaptive depth": AdaptiveDepth(),
    "adaptive width": AdaptiveWidth(),
}
"""The shapes that every rule is proven on, by name."""
