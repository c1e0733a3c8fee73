"""The versions of torch and transformers that are served, and those that are installed."""

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from treespec.errors import TreespecWarning

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
    """What is served, and what is installed, for messages."""
    found = installed_versions()
    ranges = (f"{name} {OLDEST[name]} to {TESTED[name]} (here: {found.get(name, 'none')})" for name in TESTED)
    return " and ".join(ranges)


def _minor(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", number)[:2])
