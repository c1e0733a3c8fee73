"""Which vLLM is served: one that has all names that trees rely on. The table is touched.toml."""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import pkgutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treespec.errors import UnsupportedModeError

VERSIONS, TRIED = ("0.32", "0.33"), "0.32"
"""Those that the code was written for, which pyproject.toml's extra `vllm` allows; the one that all tests ran with."""
TOUCHED: Mapping[str, Sequence[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["names"]
"""Every name of vLLM that is relied on and that vLLM does not document."""
logger = logging.getLogger("vllm.treespec")


def check_version(version: str, table: Mapping[str, Sequence[str]] = TOUCHED) -> None:
    """Warns of a vLLM that was never tried whole. Raises `UnsupportedModeError`: it has not what the table says."""
    if not version.startswith(f"{TRIED}."):
        logger.warning("treespec's tests were run with vLLM %s, this is %s: compare its output", TRIED, version)
    if lacking := missing(table):
        raise UnsupportedModeError(
            f"this vLLM {version} lacks, or has with other parameters, what treespec relies on: {', '.join(lacking)}; "
            f"install an unmodified vLLM {' or '.join(VERSIONS)}"
        )


def missing(table: Mapping[str, Sequence[str]] = TOUCHED) -> list[str]:
    """Names of the table that the installed vLLM lacks, or has with other parameters, as the table writes them."""
    found = []
    for path, entries in table.items():
        try:
            owner: Any = pkgutil.resolve_name(path)
        except (ImportError, AttributeError):
            found.append(path)
        else:
            found += [f"{path}.{entry}" for entry in entries if not any(has(owner, one) for one in entry.split(" or "))]
    return found


def has(owner: Any, entry: str) -> bool:
    """Whether a module or class has what this entry of the table says."""
    name, is_method, parameters = entry.removesuffix(")").partition("(")
    if is_method:
        value = getattr(owner, name, None)
        found = inspect.signature(value).parameters.values() if callable(value) else ()
        known = parameters.removesuffix(",...").split(",")
        # Methods that are only called may have more parameters with defaults; overridden ones may not.
        more = [p for p in found if p.name not in known and (p.default is p.empty or "..." not in parameters)]
        return [p.name for p in found][: len(known)] == known and not more
    return hasattr(owner, name) or name in getattr(owner, "__dataclass_fields__", ()) or name in _set_in(owner)


@functools.cache
def _set_in(owner: Any) -> set[str]:
    """The attributes that a class's methods set."""
    members = [member for base in getattr(owner, "__mro__", ()) for member in vars(base).values()]
    methods = [inspect.unwrap(member) for member in members if inspect.isfunction(member)]
    return {part.argval for method in methods for part in dis.get_instructions(method) if part.opname == "STORE_ATTR"}
