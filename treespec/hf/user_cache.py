"""The user's cache folder: what was measured on this machine or made for it once, each in a file of its own."""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from treespec.data.tensor_file import whole
from treespec.errors import TreespecWarning

Kept = TypeVar("Kept")


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/treespec` or `~/.cache/treespec`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treespec"


def read_kept(path: Path, parse: Callable[[Any], Kept | None], unfit: str) -> Kept | None:
    """A measurement that was kept; None if there is no file, or, with a warning, if it is damaged or does not fit.

    `parse` makes it of the file's JSON, or None where that does not fit; then the warning says `unfit`.
    """
    if not path.is_file():
        return None
    try:
        found = parse(json.loads(path.read_text()))
        if found is not None:
            return found
        reason = unfit
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(f"{path} is ignored and written again: {reason}", TreespecWarning, stacklevel=4)
    return None


def write_kept(path: Path, data: dict[str, Any]) -> None:
    """Write a measurement as JSON, whole or not at all; warns where it cannot be kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as scratch:
            scratch.write_text(json.dumps(data, indent=1) + "\n")
    except OSError as error:
        message = f"the measurement cannot be kept in {path.parent} ({error}): the next process measures again"
        warnings.warn(message, TreespecWarning, stacklevel=4)
