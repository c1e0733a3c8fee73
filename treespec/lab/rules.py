"""Verification rules by the names that files have for them."""

from contextlib import suppress
from typing import Any

from treespec.errors import ConfigError
from treespec.protocols import VerificationRule
from treespec.verification import RULES


def rule_name(rule: str | VerificationRule) -> str | None:
    """The registered name that stands for exactly this rule, "auto" for itself; None: no name does.

    So it is with a rule of other settings than its name's, and with one of the caller's own that is not registered,
    whatever its `name`.
    """
    if isinstance(rule, str):
        return rule
    for name in dict.fromkeys((rule.name, *RULES)):
        with suppress(KeyError, ConfigError):  # Names that are not registered, and parts that cannot be imported.
            known: Any = RULES[name]
            if known is rule or known == rule:
                return name
    return None
