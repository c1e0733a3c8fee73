"""Verification rules: which path of a drafted tree is kept, and the token that follows it.

`registry` has the rules by name, `treespec.literature` those that are kept for comparison; `dispatch` chooses between
tree by tree and all nodes at once (`dense/`).
"""

from typing import TYPE_CHECKING

from treespec.checks import AUTO
from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.verification.dispatch import verify
    from treespec.verification.recursive import RecursiveRejection, TokenVerification
    from treespec.verification.registry import RULES, get_rule, resolve, supporting_rules
    from treespec.verification.rule import ArgmaxSource, GivenUniforms
    from treespec.verification.target_walk import TargetWalk
    from treespec.verification.traversal import BlockVerification, Traversal

__all__ = [
    "AUTO",
    "RULES",
    "ArgmaxSource",
    "BlockVerification",
    "GivenUniforms",
    "RecursiveRejection",
    "TargetWalk",
    "TokenVerification",
    "Traversal",
    "get_rule",
    "resolve",
    "supporting_rules",
    "verify",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "dispatch": "verify",
        "recursive": "RecursiveRejection TokenVerification",
        "registry": "RULES get_rule resolve supporting_rules",
        "rule": "ArgmaxSource GivenUniforms",
        "target_walk": "TargetWalk",
        "traversal": "BlockVerification Traversal",
    },
)
