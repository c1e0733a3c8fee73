"""Options: checks of them, of distributions among them, how an object shows its own; and which versions are served."""

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import Module

from treespec.errors import ConfigError, TreespecWarning

AUTO = "auto"
MAX_SHOWN = 80
"""A longer list or text is not shown."""
CHILDREN = (AUTO, "selected", "iid", "without_replacement", "mixed")


class ShowsOptions:
    """`repr` of an object: its class and the constructor's arguments that it keeps and that differ from the defaults.

    An argument is read from the attribute of its name, public or with an underscore.
    """

    def __repr__(self) -> str:
        shown, kept = [], vars(self)
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = kept.get(name, kept.get(f"_{name}", parameter.default))
            is_equal = isinstance(value, str | int | float) and value == parameter.default
            if value is not parameter.default and not is_equal:
                shown.append(f"{name}={_short(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    """A value in a few words: modules and arrays, and what has no `repr` of its own, by the name of their class."""
    if isinstance(value, list | tuple) and len(value) <= MAX_SHOWN:
        return f"[{', '.join(map(_short, value))}]"
    is_large = isinstance(value, Module | Tensor | list | tuple) or type(value).__repr__ is object.__repr__
    return f"<{type(value).__name__}>" if is_large or len(repr(value)) > MAX_SHOWN else repr(value)


def check_children(children: str, allowed: tuple[str, ...] = CHILDREN) -> str:
    """Raises `ConfigError`: `children` is not one of `allowed`."""
    if children not in allowed:
        raise ConfigError(f"children must be one of {', '.join(allowed)}, got {children!r}")
    return children


def check_count(name: str, value: int, least: int = 1, most: int | None = None) -> int:
    """Raises `ConfigError`: `value` is not an int of at least `least`, one or zero, or is more than `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be {'a positive int' if least else 'an int >= 0'}, got {value!r}")
    if most is not None and value > most:
        raise ConfigError(f"{name} must be at most {most}, got {value}")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Raises `ConfigError`: `value` is not True or False, such as "no", which counts as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    return value


def check_number(name: str, value: float, is_good: Callable[[Any], bool], wanted: str) -> float:
    """Raises `ConfigError`: `value` is not a number for which `is_good` holds; `wanted` says which ones are."""
    if isinstance(value, bool) or not isinstance(value, Real) or not is_good(value):
        raise ConfigError(f"{name} must {wanted}, got {value!r}")
    return value


def is_policy(tree: object) -> bool:
    """Whether an object (not a class) has what a `TreePolicy` has."""
    return not isinstance(tree, type) and callable(getattr(tree, "grow", None)) and hasattr(tree, "max_nodes")


def check_share(name: str, value: Any) -> None:
    """Raises `ConfigError`: `value` is not in [0, 1]; exact numbers such as fractions are allowed."""
    check_number(name, value, lambda share: 0 <= share <= 1, "lie in [0, 1]")


def are_distributions(probs: Float[Tensor, "*rows V"], tolerance: float = 1e-3) -> Bool[Tensor, "*rows"]:
    """Whether the entries are finite, not negative, and sum to one within `tolerance`, by default a softmax's."""
    # Least entries, for comparing all of them takes a CPU ten times as long.
    return are_totals(probs.amin(-1), probs.sum(-1), tolerance)


def are_totals(least: Tensor, total: Tensor, tolerance: float = 1e-3) -> Tensor:
    """`are_distributions`, given the least entries and the sums; NaN fails either comparison."""
    return (least >= 0) & ((total - 1).abs() <= tolerance)


def check_distributions(name: str, probs: Tensor, may_be_empty: bool = False) -> None:
    """Raise ConfigError unless `probs` is a tensor of distributions [..., V], up to half precision or two decimals.

    `may_be_empty` accepts rows of zeros.
    """
    if not isinstance(probs, Tensor):
        raise ConfigError(f"{name} must be a tensor of floats [..., V], got {type(probs).__name__}")
    if not probs.is_floating_point() or probs.ndim == 0 or probs.shape[-1] == 0:
        raise ConfigError(f"{name} must be floats [..., V], got {probs.dtype} {list(probs.shape)}")
    is_good = are_distributions(probs.double(), 0.01 + 1e-9) | (may_be_empty & (probs == 0).all(-1))
    if not bool(is_good.all()):
        row = tuple((~is_good).nonzero()[0].tolist())
        least, most, total = (float(x) for x in (probs[row].min(), probs[row].max(), probs[row].double().sum()))
        raise ConfigError(
            f"{name}{list(row) or ''} must be a probability distribution: its entries are from {least:.6g} to "
            f"{most:.6g}, their sum is {total:.6g}. Pass probabilities, not logits"
        )


OLDEST = {"torch": "2.8", "transformers": "5.18"}
"""The floors of `pyproject.toml`."""
TESTED = {"torch": "2.15", "transformers": "5.24"}
"""The newest with which all tests passed."""


def installed_versions(*more: str) -> dict[str, str]:
    """The installed versions of torch, transformers and others; one without metadata is left out."""
    found = {}
    for name in (*more, *TESTED):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def is_at_least(name: str, number: str) -> bool:
    """Whether this version of torch or transformers, or a newer one, is installed."""
    return _minor(installed_versions().get(name, "0")) >= _minor(number)


def warn_of_untested(found: Mapping[str, str]) -> None:
    """Warn by name and version of a package that is newer than the newest one tested."""
    for name, number in found.items():
        if _minor(number) > _minor(TESTED[name]):
            warnings.warn(
                f"{name} {number} is newer than {TESTED[name]}, the newest that treespec was tested with: "
                "treespec.check(model) compares its output with plain generate",
                TreespecWarning,
                stacklevel=3,
            )


def needed_versions() -> str:
    """The supported and the installed versions, for messages."""
    found = installed_versions()
    ranges = (f"{name} {OLDEST[name]} to {TESTED[name]} (here: {found.get(name, 'none')})" for name in TESTED)
    return " and ".join(ranges)


def _minor(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", number)[:2])
