"""How trees are shaped. A policy grows trees from any source of next-token distributions that can serve it."""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.policies.best_first import BestFirst
    from treespec.policies.chain import Chain, StopRule
    from treespec.policies.control import Control
    from treespec.policies.growing import TreeBuilder
    from treespec.policies.paths import KAry, Paths
    from treespec.policies.sequoia import Sequoia, optimal_paths
    from treespec.policies.tree_argument import as_policy

__all__ = [
    "BestFirst",
    "Chain",
    "Control",
    "KAry",
    "Paths",
    "Sequoia",
    "StopRule",
    "TreeBuilder",
    "as_policy",
    "optimal_paths",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "best_first": "BestFirst",
        "chain": "Chain StopRule",
        "control": "Control",
        "growing": "TreeBuilder",
        "paths": "KAry Paths",
        "sequoia": "Sequoia optimal_paths",
        "tree_argument": "as_policy",
    },
)
