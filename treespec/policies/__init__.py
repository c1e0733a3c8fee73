"""How trees are shaped. A policy grows trees from any source of next-token distributions that can serve it."""

from collections.abc import Sequence

from treespec.checks import AUTO, is_policy
from treespec.errors import ConfigError
from treespec.policies.best_first import CHILD_SHARE, BestFirst, SpecExec
from treespec.policies.chain import Chain, StopRule
from treespec.policies.control import Control
from treespec.policies.growing import TreeBuilder
from treespec.policies.named import delayed_branching, dyspec, eagle2, opt_tree
from treespec.policies.paths import KAry, Paths
from treespec.policies.sequoia import Sequoia, optimal_paths
from treespec.protocols import TreePolicy


def as_policy(tree: TreePolicy | str | Sequence[Sequence[int]] | int) -> TreePolicy:
    """The policy that `tree` stands for: itself, "auto", a list of rank paths or its literal, or a node budget.

    Raises:
        ConfigError: none of these.
        InvalidTreeError: not a list of rank paths.
    """
    if isinstance(tree, int) and not isinstance(tree, bool):
        return BestFirst(tree, child_share=CHILD_SHARE)
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


__all__ = [
    "BestFirst",
    "Chain",
    "Control",
    "KAry",
    "Paths",
    "Sequoia",
    "SpecExec",
    "StopRule",
    "TreeBuilder",
    "as_policy",
    "delayed_branching",
    "dyspec",
    "eagle2",
    "opt_tree",
    "optimal_paths",
]
