"""Verification rules: which path of a drafted tree is kept, and the token that follows it."""

from __future__ import annotations

from treespec.errors import ConfigError
from treespec.protocols import VerificationRule
from treespec.tree import TreeBatch
from treespec.verification.admission import Admission, AdmittingRule, check_admission
from treespec.verification.block import BlockVerification
from treespec.verification.chooser import ArgmaxChooser, GivenChooser
from treespec.verification.dense import verify_dense
from treespec.verification.ensemble import EnsembleVerification
from treespec.verification.entry import verify
from treespec.verification.kseq import KSeq
from treespec.verification.optimal_transport import OptimalTransport
from treespec.verification.recursive import RecursiveRejection
from treespec.verification.target_walk import TargetWalk
from treespec.verification.threshold import ThresholdAcceptance
from treespec.verification.token import TokenVerification
from treespec.verification.transport_traversal import TransportTraversal
from treespec.verification.traversal import Traversal
from treespec.verification.typical import TypicalAcceptance

AUTO = "auto"

_rules: tuple[AdmittingRule, ...] = (
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
RULES: dict[str, AdmittingRule] = {rule.name: rule for rule in _rules}
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
    if isinstance(rule, type) or not all(hasattr(rule, name) for name in ("name", "is_lossless", "check", "walk")):
        raise ConfigError(f"a verification rule is a name or an object with check() and walk(), got {rule!r}")
    return rule


def resolve(verification: str | VerificationRule, is_sampling: bool, trees: TreeBatch) -> VerificationRule:
    """The rule that verifies these trees.

    "auto" stands for the target walk where every child was selected (no lossless rule accepts more there) and for
    traversal otherwise. Greedy decoding always ends in the target walk in place of a lossless rule: with a one-hot
    target each of them keeps what it keeps or less, and it can do with scores in place of laws. It draws nothing, so
    of what the rule admits only the shape is asked for.

    Raises:
        ConfigError: an unknown rule.
        RuleMismatchError: the rule does not admit the trees.
    """
    if verification == AUTO:
        return RULES["target_walk" if trees.laws is None or not is_sampling else "traversal"]
    rule = get_rule(verification)
    if rule.is_lossless and not is_sampling:
        admission = getattr(rule, "admission", Admission())
        check_admission(rule.name, Admission(is_chain_only=admission.is_chain_only), trees)
        return RULES["target_walk"]
    rule.check(trees)
    return rule


def admissible_rules(trees: TreeBatch) -> list[str]:
    """Names of the lossless rules that admit these trees."""
    return [name for name, rule in RULES.items() if rule.is_lossless and rule.admission.objection(trees) is None]


__all__ = [
    "AUTO",
    "RULES",
    "ArgmaxChooser",
    "BlockVerification",
    "EnsembleVerification",
    "GivenChooser",
    "KSeq",
    "OptimalTransport",
    "RecursiveRejection",
    "TargetWalk",
    "ThresholdAcceptance",
    "TokenVerification",
    "TransportTraversal",
    "Traversal",
    "TypicalAcceptance",
    "admissible_rules",
    "get_rule",
    "resolve",
    "verify",
    "verify_dense",
]
