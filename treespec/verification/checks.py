"""Checks of settings and of laws."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from torch import Tensor

from treespec.errors import ConfigError

LAW_TOLERANCE = 1e-3


def check_share(name: str, value: Any) -> None:
    """Raise for a setting that is no share, NaN included.

    Raises:
        ConfigError: no number in [0, 1].
    """
    number: Any = value if isinstance(value, Real) else math.nan
    if not 0 <= number <= 1:
        raise ConfigError(f"{name} must lie in [0, 1], got {value!r}")


def are_laws(probs: Tensor) -> Tensor:
    """bool [...], of float [..., V]: finite, not negative, and summing to one within LAW_TOLERANCE."""
    # NaN fails every comparison, so these ask for the good and never for the bad.
    return (probs.amin(-1) >= 0) & ((probs.sum(-1) - 1).abs() <= LAW_TOLERANCE)
