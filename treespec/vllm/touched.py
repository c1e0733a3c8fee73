"""Whether the installed vLLM has all names that trees rely on: the table is touched.toml."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TOUCHED: Mapping[str, Sequence[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def missing(table: Mapping[str, Sequence[str]] = TOUCHED) -> list[str]:
    """What of the table the installed vLLM has not, or has with other parameters, in words."""
    found = []
    for path, names in table.items():
        module, _, owner_name = path.partition(":")
        try:
            owner: Any = importlib.import_module(module)
            owner = getattr(owner, owner_name) if owner_name else owner
        except (ImportError, AttributeError):
            found.append(path)
            continue
        found += [f"{path}.{name}" for name in names if not _has(owner, *name.rstrip(")").split("("))]
    return found


def _has(owner: Any, name: str, parameters: str | None = None) -> bool:
    value = getattr(owner, name, None)
    if parameters is not None:
        return callable(value) and ",".join(inspect.signature(value).parameters) == parameters
    if value is not None or name in vars(owner):
        return True
    bases = owner.__mro__[:-1] if inspect.isclass(owner) else ()
    return any(re.search(rf"(self\.|^    ){name}\b", _source(base), re.MULTILINE) for base in bases)


@functools.cache
def _source(base: type) -> str:
    try:
        return inspect.getsource(base)
    except (OSError, TypeError):  # Classes that were made without a source.
        return ""
