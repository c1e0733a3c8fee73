"""Rules by name, and the choice of the rule that verifies a batch of trees."""

from contextlib import suppress
from typing import Any

from treespec.checks import AUTO
from treespec.errors import ConfigError, RuleMismatchError
from treespec.protocols import VerificationRule
from treespec.registry import Registry
from treespec.tree import TreeBatch
from treespec.verification.rule import BaseRule, Requirements


def _checked(rule: Any) -> Any:
    """A rule, or one of a class with its default settings. Raises `ConfigError`: anything else."""
    rule = rule() if isinstance(rule, type) and hasattr(rule, "verify") else rule
    attributes = ("name", "is_lossless", "reason_against", "verify")
    if isinstance(rule, type) or not all(hasattr(rule, name) for name in attributes):
        raise ConfigError(f"a verification rule is a name or an object with {', '.join(attributes)}, got {rule!r}")
    return rule


RULES: Registry[BaseRule] = Registry(
    "verification rule",
    {
        "target_walk": "treespec.verification.target_walk:TargetWalk",
        "token": "treespec.verification.recursive:TokenVerification",
        "block": "treespec.verification.traversal:BlockVerification",
        "recursive": "treespec.verification.recursive:RecursiveRejection",
        "traversal": "treespec.verification.traversal:Traversal",
        "k_seq": "treespec.literature.kseq:KSeq",
        "optimal_transport": "treespec.literature.transport:OptimalTransport",
        "transport_traversal": "treespec.literature.transport:TransportTraversal",
        "typical_acceptance": "treespec.literature.lossy:TypicalAcceptance",
        "ensemble": "treespec.literature.lossy:EnsembleVerification",
        "threshold": "treespec.literature.lossy:ThresholdAcceptance",
    },
    made=_checked,
)
"""Every rule by name, with its default settings. `RULES.register("mine", "my_package.my_module:MyRule")` adds one."""
RULES.taken["choice of rules"] = {AUTO}


def get_rule(rule: str | VerificationRule) -> VerificationRule:
    """The rule of that name, or the rule itself. Raises `ConfigError`: any other name or object."""
    if isinstance(rule, str):
        if rule not in RULES:
            raise ConfigError(f"no verification rule is called '{rule}'; choose from {', '.join([AUTO, *RULES])}")
        return RULES[rule]
    if isinstance(rule, type):
        raise ConfigError(f"a verification rule is a name or an object, got {rule!r}: make one")
    return _checked(rule)


def resolve(verification: str | VerificationRule, is_sampling: bool, trees: TreeBatch) -> VerificationRule:
    """The rule that verifies these trees.

    "auto" is the target walk where every child was selected (no lossless rule accepts more there) and traversal
    otherwise. Greedy decoding replaces a lossless rule by the target walk, which needs scores only: with a one-hot
    target no other rule keeps more. It reads no draft distribution, so of the named rule's requirements only the shape
    counts.

    Raises:
        ConfigError: an unknown rule.
        RuleMismatchError: the rule cannot verify the trees.
    """
    if verification == AUTO:
        return RULES["target_walk" if trees.draft_probs is None or not is_sampling else "traversal"]
    rule = get_rule(verification)
    if rule.is_lossless and not is_sampling:
        is_chain_only = getattr(rule, "requirements", Requirements()).is_chain_only
        chosen, reason = RULES["target_walk"], Requirements(is_chain_only=is_chain_only).reason_against(trees)
    else:
        chosen, reason = rule, rule.reason_against(trees)
    if reason is not None:
        raise RuleMismatchError(
            f"rule '{rule.name}' cannot verify these trees: {reason}; "
            f"lossless rules that can: {', '.join(supporting_rules(trees))}"
        )
    return chosen


def supporting_rules(trees: TreeBatch) -> list[str]:
    """Names of the lossless rules that can verify these trees, without those that cannot be imported."""
    names = []
    for name in RULES:
        with suppress(ConfigError):
            if RULES[name].is_lossless and RULES[name].reason_against(trees) is None:
                names.append(name)
    return names
