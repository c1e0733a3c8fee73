"""Toy trees that grow node by node, with distributions of any arithmetic, and the shapes in which they grow."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from treespec.tree import POINT_MASS, ROOT_PARENT, Path, TokenTree, parse_paths

Context = tuple[int, ...]
"""The tokens after the root."""


@dataclass
class ToyTree:
    """A `VerifiableTree`. Earlier siblings are taken out of `draft_probs[i]`, not yet of `base_distributions[i]`.

    Both are None for a point mass.
    """

    tokens: list[int] = field(default_factory=lambda: [0])
    parents: list[int] = field(default_factory=lambda: [ROOT_PARENT])
    draft_probs: list[np.ndarray | None] = field(default_factory=lambda: [None])
    base_distributions: list[np.ndarray | None] = field(default_factory=lambda: [None])
    contexts: list[Context] = field(default_factory=lambda: [()])
    ranks: list[Path] = field(default_factory=lambda: [()])
    child_lists: list[list[int]] = field(default_factory=lambda: [[]])
    is_width_fixed: bool = True

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        return self.child_lists[node]

    def token(self, node: int) -> int:
        return self.tokens[node]

    def draft_probs_of(self, node: int) -> np.ndarray | None:
        return self.draft_probs[node]

    def add(self, parent: int, token: int, probs: np.ndarray | None, base_probs: np.ndarray | None) -> None:
        self.ranks.append((*self.ranks[parent], len(self.child_lists[parent])))
        self.child_lists[parent].append(self.num_nodes)
        self.child_lists.append([])
        self.contexts.append((*self.contexts[parent], token))
        self.tokens.append(token)
        self.parents.append(parent)
        self.draft_probs.append(probs)
        self.base_distributions.append(base_probs)

    def to_token_tree(self) -> TokenTree:
        """The same tree as the engine would store it, distributions in float64."""
        rows = {id(base): base for base in self.base_distributions if base is not None}
        number = {key: row for row, key in enumerate(rows)}
        index = [POINT_MASS if base is None else number[id(base)] for base in self.base_distributions]
        draws = list(zip(self.parents, map(id, self.base_distributions), strict=True))
        # The first of several draws without replacement has the whole distribution, and is one of them all the same.
        pairs = zip(draws, self.draft_probs, self.base_distributions, strict=True)
        without_replacement = {draw for draw, probs, base in pairs if probs is not base}
        flags = [draw in without_replacement for draw in draws]
        probs = (
            torch.tensor(np.array([row.astype(np.float64) for row in rows.values()]), device="cpu") if rows else None
        )
        return TokenTree(
            tokens=torch.tensor(self.tokens, device="cpu"),
            parents=torch.tensor(self.parents, device="cpu"),
            draft_probs=probs,
            draft_index=torch.tensor(index, device="cpu") if rows else None,
            is_without_replacement=torch.tensor(flags, device="cpu") if rows else None,
            is_width_fixed=self.is_width_fixed,
        )


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
    def from_paths(cls, paths: str | Sequence[Sequence[int]]) -> Self:
        return cls(tuple(parse_paths(paths)))

    @classmethod
    def kary(cls, *branching: int) -> Self:
        """`branching[d]` children for every node of depth d: `kary(1, 1)` is a chain of two."""
        level = [()]
        paths = []
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
