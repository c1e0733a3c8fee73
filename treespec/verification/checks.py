"""Checks that the rules' settings share."""

from __future__ import annotations

from typing import Any

from treespec.errors import ConfigError


def check_share(name: str, value: Any) -> None:
    """Raise for a setting that is no share, NaN included.

    Raises:
        ConfigError: a value outside of [0, 1].
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must lie in [0, 1], got {value}")
