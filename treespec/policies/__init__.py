"""How trees are shaped. A policy grows trees from any source of next-token distributions that can serve it."""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.policies.best_first import BestFirst as BestFirst
    from treespec.policies.chain import Chain as Chain
    from treespec.policies.chain import StopRule as StopRule
    from treespec.policies.control.control import Control as Control
    from treespec.policies.growing import TreeBuilder as TreeBuilder
    from treespec.policies.paths import KAry as KAry
    from treespec.policies.paths import Paths as Paths
    from treespec.policies.sequoia import Sequoia as Sequoia
    from treespec.policies.sequoia import optimal_paths as optimal_paths
    from treespec.policies.tree_argument import as_policy as as_policy

__getattr__, __dir__, __all__ = lazy(__name__)
