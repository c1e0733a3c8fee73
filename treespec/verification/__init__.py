"""Verification rules: which path of a drafted tree is kept, and the token that follows it.

`comparison/` keeps the rules of the literature that lose to the others or are lossy; `dispatch` chooses between tree by
tree and all nodes at once (`dense/`).
"""

from treespec.checks import AUTO
from treespec.verification.block import BlockVerification
from treespec.verification.comparison.kseq import KSeq
from treespec.verification.comparison.lossy import EnsembleVerification, ThresholdAcceptance, TypicalAcceptance
from treespec.verification.comparison.transport import OptimalTransport, TransportTraversal
from treespec.verification.dense.forms import verify_dense
from treespec.verification.dispatch import verify
from treespec.verification.recursive import RecursiveRejection, TokenVerification
from treespec.verification.registry import RULES, get_rule, resolve, supporting_rules
from treespec.verification.rule import ArgmaxSource, GivenUniforms
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
