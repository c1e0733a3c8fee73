"""Verification rules by the names that files have for them."""

from contextlib import suppress
from typing import Any

from treespec.errors import ConfigError
from treespec.protocols import VerificationRule
from treespec.verification import RULES

UNNAMED = "unregistered "
"""Before a rule that no name stands for, so that none can be taken for it."""


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


def describe(part: Any) -> str:
    """A part's `repr` where it says more than an address, else its class."""
    text = repr(part)
    return type(part).__name__ if " at 0x" in text or len(text) > 400 else text


def traced_rule(rule: str | VerificationRule) -> str:
    """How a trace names a rule: by `rule_name`, or by `UNNAMED` and what it is."""
    return rule_name(rule) or f"{UNNAMED}{describe(rule)}"
