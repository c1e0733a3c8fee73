"""Checks of settings and of laws."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from treespec.errors import ConfigError

LAW_TOLERANCE = 1e-3


def check_share(name: str, value: Any) -> None:
    """Raise for a setting that is no share, NaN included.

    Raises:
        ConfigError: a value outside of [0, 1].
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must lie in [0, 1], got {value}")


def are_laws(probs: Tensor) -> Tensor:
    """bool [...], of float [..., V]: finite, not negative, and summing to one within LAW_TOLERANCE."""
    # NaN fails every comparison, so these ask for the good and never for the bad.
    return (probs.amin(-1) >= 0) & ((probs.sum(-1) - 1).abs() <= LAW_TOLERANCE)
