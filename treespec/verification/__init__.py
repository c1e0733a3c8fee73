"""Verification rules: which path of a drafted tree is kept, and the token that follows it."""

from __future__ import annotations

from treespec.errors import ConfigError
from treespec.protocols import VerificationRule
from treespec.tree import TreeBatch
from treespec.verification.block import BlockVerification
from treespec.verification.dense import verify_dense
from treespec.verification.ensemble import EnsembleVerification
from treespec.verification.entry import verify
from treespec.verification.kseq import KSeq
from treespec.verification.optimal_transport import OptimalTransport
from treespec.verification.random_source import ArgmaxSource, GivenUniforms
from treespec.verification.recursive import RecursiveRejection
from treespec.verification.requirements import BaseRule, Requirements, check_requirements
from treespec.verification.target_walk import TargetWalk
from treespec.verification.threshold import ThresholdAcceptance
from treespec.verification.token import TokenVerification
from treespec.verification.transport_traversal import TransportTraversal
from treespec.verification.traversal import Traversal
from treespec.verification.typical import TypicalAcceptance

AUTO = "auto"

_rules: tuple[BaseRule, ...] = (
    TargetWalk(),
    TokenVerification(),
    BlockVerification(),
    RecursiveRejection(),
    Traversal(),
    KSeq(),
    OptimalTransport(),
    TransportTraversal(),
    TypicalAcceptance(),
    EnsembleVerification(),
    ThresholdAcceptance(),
)
RULES: dict[str, BaseRule] = {rule.name: rule for rule in _rules}
"""Every rule by name, with its default settings."""


def get_rule(rule: str | VerificationRule) -> VerificationRule:
    """The rule of that name, or the rule itself.

    Raises:
        ConfigError: no rule has that name, or the object is not a rule.
    """
    if isinstance(rule, str):
        if rule not in RULES:
            raise ConfigError(f"no verification rule is called '{rule}'; choose from {', '.join([AUTO, *RULES])}")
        return RULES[rule]
    if isinstance(rule, type) or not all(hasattr(rule, name) for name in ("name", "is_lossless", "check", "verify")):
        raise ConfigError(f"a verification rule is a name or an object with check() and verify(), got {rule!r}")
    return rule


def resolve(verification: str | VerificationRule, is_sampling: bool, trees: TreeBatch) -> VerificationRule:
    """The rule that verifies these trees.

    "auto" stands for the target walk where every child was selected (no lossless rule accepts more there) and for
    traversal otherwise. Greedy decoding always ends in the target walk in place of a lossless rule: with a one-hot
    target each of them keeps what it keeps or less, and it can do with scores in place of distributions. It draws
    nothing, so of what the rule admits only the shape is asked for.

    Raises:
        ConfigError: an unknown rule.
        RuleMismatchError: the rule does not admit the trees.
    """
    if verification == AUTO:
        return RULES["target_walk" if trees.draft_probs is None or not is_sampling else "traversal"]
    rule = get_rule(verification)
    if rule.is_lossless and not is_sampling:
        requirements = getattr(rule, "requirements", Requirements())
        check_requirements(rule.name, Requirements(is_chain_only=requirements.is_chain_only), trees)
        return RULES["target_walk"]
    rule.check(trees)
    return rule


def supporting_rules(trees: TreeBatch) -> list[str]:
    """Names of the lossless rules that admit these trees."""
    return [
        name for name, rule in RULES.items() if rule.is_lossless and rule.requirements.reason_against(trees) is None
    ]


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
