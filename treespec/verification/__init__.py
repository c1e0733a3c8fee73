"""Verification rules: which path of a drafted tree is kept, and the token that follows it.

The rules to use are in `target_walk`, `recursive` (and token), `block` and `traversal`; `comparison/` keeps those of
the literature that lose to them or are lossy. `registry` finds rules by name, `entry` is the public `verify`,
`dispatch` chooses between tree by tree and all nodes at once (`dense/`); `optimum/` bounds lossless rules.
"""

from treespec.checks import AUTO
from treespec.verification.block import BlockVerification
from treespec.verification.comparison import (
    EnsembleVerification,
    KSeq,
    OptimalTransport,
    ThresholdAcceptance,
    TransportTraversal,
    TypicalAcceptance,
)
from treespec.verification.dense import verify_dense
from treespec.verification.entry import verify
from treespec.verification.random_source import ArgmaxSource, GivenUniforms
from treespec.verification.recursive import RecursiveRejection, TokenVerification
from treespec.verification.registry import RULES, get_rule, resolve, supporting_rules
from treespec.verification.target_walk import TargetWalk
from treespec.verification.traversal import Traversal

__all__ = [
    "AUTO",
    "RULES",
    "ArgmaxSource",
    "BlockVerification",
    "EnsembleVerification",
    "GivenUniforms",
    "KSeq",
    "OptimalTransport",
    "RecursiveRejection",
    "TargetWalk",
    "ThresholdAcceptance",
    "TokenVerification",
    "TransportTraversal",
    "Traversal",
    "TypicalAcceptance",
    "get_rule",
    "resolve",
    "supporting_rules",
    "verify",
    "verify_dense",
]
