"""Paths through trees, tree shapes written as lists of rank paths, and verdicts, which are paths that were accepted."""

import ast
from collections.abc import Sequence
from operator import index
from typing import NamedTuple

from treespec.errors import InvalidTreeError
from treespec.tree.arrays import ROOT_PARENT

Path = tuple[int, ...]
"""Node ids from the root, or ranks among siblings below it."""


class Verdict(NamedTuple):
    """A verification rule's decision about one tree."""

    path: Path
    """The accepted node ids, root included."""
    next_token: int
    """The token that follows the path, drawn from what is left of the target distribution."""
    is_bonus: bool
    """True for a bonus token, drawn at a leaf; False where every child of the path's last node was rejected."""

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens: the path without its root."""
        return len(self.path) - 1


def parse_paths(paths: str | Sequence[Sequence[int]]) -> list[Path]:
    """Read a list of rank paths, parents before children, given as such or as its literal `"[(0,), (1,), (0, 0)]"`.

    Raises `InvalidTreeError`: not a list of tuples of ranks, a duplicate, or a path before its parent or earlier
    sibling.
    """
    try:
        listed = ast.literal_eval(paths) if isinstance(paths, str) else paths
        parsed = [tuple(_rank(rank) for rank in path) for path in listed]
    except (ValueError, SyntaxError, TypeError) as error:
        raise InvalidTreeError(f"expected a list of rank paths such as [(0,), (1,), (0, 0)], got {paths!r}") from error
    seen: set[Path] = {()}
    for path in parsed:
        if not path or min(path) < 0 or path in seen:
            raise InvalidTreeError(f"path {path} is empty, negative or given twice in {paths!r}")
        if path[:-1] not in seen:
            raise InvalidTreeError(f"path {path} stands before its parent {path[:-1]} in {paths!r}")
        if path[-1] > 0 and (*path[:-1], path[-1] - 1) not in seen:
            raise InvalidTreeError(f"path {path} stands before its sibling of rank {path[-1] - 1} in {paths!r}")
        seen.add(path)
    return parsed


def _rank(rank: object) -> int:
    """Raises `TypeError`: not an int, or a bool, which would count as one."""
    if isinstance(rank, bool):
        raise TypeError(f"a rank must be an int, got {rank}")
    return index(rank)  # pyright: ignore[reportArgumentType]


def parents_of_paths(paths: Sequence[Path]) -> list[int]:
    """Parent ids of the tree whose node i + 1 is `paths[i]`; the root's is -1."""
    ids = {(): 0} | {path: i + 1 for i, path in enumerate(paths)}
    return [ROOT_PARENT] + [ids[path[:-1]] for path in paths]
