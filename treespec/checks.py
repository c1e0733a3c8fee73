"""Checks of options, and of whether an array is a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from torch import Tensor

from treespec.errors import ConfigError

AUTO = "auto"
CHILDREN = (AUTO, "selected", "iid", "without_replacement", "mixed")


def check_children(children: str, allowed: tuple[str, ...] = CHILDREN) -> str:
    """Raises: ConfigError, unless `children` is one of `allowed`."""
    if children not in allowed:
        raise ConfigError(f"children must be one of {', '.join(allowed)}, got {children!r}")
    return children


def check_count(name: str, value: int) -> int:
    """Raises: ConfigError, unless `value` is a positive int."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a positive int, got {value!r}")
    return value


def check_number(name: str, value: float, is_good: Callable[[Any], bool], wanted: str) -> float:
    """Raises: ConfigError, unless `value` is a number for which `is_good` holds; `wanted` says which ones."""
    if isinstance(value, bool) or not isinstance(value, Real) or not is_good(value):
        raise ConfigError(f"{name} must {wanted}, got {value!r}")
    return value


def is_policy(tree: object) -> bool:
    """Whether an object (not a class) has what a `TreePolicy` has."""
    return not isinstance(tree, type) and callable(getattr(tree, "grow", None)) and hasattr(tree, "max_nodes")


SUM_TOLERANCE = 1e-3


def check_share(name: str, value: Any) -> None:
    """Raise for a setting that is no share, NaN included.

    Raises:
        ConfigError: no number in [0, 1].
    """
    number: Any = value if isinstance(value, Real) else math.nan
    if not 0 <= number <= 1:
        raise ConfigError(f"{name} must lie in [0, 1], got {value!r}")


def are_distributions(probs: Tensor) -> Tensor:
    """bool [...], of float [..., V]: finite, not negative, and summing to one within SUM_TOLERANCE."""
    # NaN fails every comparison, so these ask for the good and never for the bad.
    return (probs.amin(-1) >= 0) & ((probs.sum(-1) - 1).abs() <= SUM_TOLERANCE)
