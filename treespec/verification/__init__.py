"""Verification rules: which path of a drafted tree is kept, and the token that follows it.

`registry` has the rules by name, `treespec.literature` those that are kept for comparison; `dispatch` chooses between
tree by tree and all nodes at once (`dense/`).
"""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.checks import AUTO as AUTO
    from treespec.verification.dispatch import verify as verify
    from treespec.verification.recursive import RecursiveRejection as RecursiveRejection
    from treespec.verification.recursive import TokenVerification as TokenVerification
    from treespec.verification.registry import RULES as RULES
    from treespec.verification.registry import get_rule as get_rule
    from treespec.verification.registry import resolve as resolve
    from treespec.verification.registry import supporting_rules as supporting_rules
    from treespec.verification.rule import ArgmaxSource as ArgmaxSource
    from treespec.verification.rule import GivenUniforms as GivenUniforms
    from treespec.verification.target_walk import TargetWalk as TargetWalk
    from treespec.verification.traversal import BlockVerification as BlockVerification
    from treespec.verification.traversal import Traversal as Traversal

__getattr__, __dir__, __all__ = lazy(__name__)
