"""Conversion of the argument `tree` to a policy."""

from collections.abc import Sequence

from treespec.checks import AUTO, is_policy
from treespec.errors import ConfigError
from treespec.policies.best_first import tree_of
from treespec.policies.control.control import Control
from treespec.policies.paths import Paths
from treespec.protocols import TreePolicy


def as_policy(tree: TreePolicy | str | Sequence[Sequence[int]] | int) -> TreePolicy:
    """The policy that `tree` stands for: itself, "auto", a list of rank paths or its literal, or a node budget.

    Raises:
        ConfigError: none of these.
        InvalidTreeError: not a list of rank paths.
    """
    if isinstance(tree, int) and not isinstance(tree, bool):
        return tree_of(tree)
    if tree == AUTO:
        return Control()
    if isinstance(tree, (str, list, tuple)):
        return Paths(tree)
    if is_policy(tree):
        return tree  # pyright: ignore[reportReturnType]
    raise ConfigError(
        f"tree must be 'auto', a tree policy, a list of rank paths such as [(0,), (1,), (0, 0)], or a node budget, got "
        f"{tree!r}"
    )
