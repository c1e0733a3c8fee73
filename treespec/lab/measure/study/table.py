"""Tables of runs, in parquet: one row per cell and prompt."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treespec.errors import ConfigError


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows of the same names, whole or not at all, into a folder that is made if missing.

    Raises `ConfigError`: pyarrow is missing.
    """
    arrow, parquet = _arrow()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        parquet.write_table(arrow.Table.from_pylist(list(rows)), scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows. Raises `ConfigError`: no such file, it is damaged, or pyarrow is missing."""
    arrow, parquet = _arrow()
    try:
        return parquet.read_table(path).to_pylist()
    except (OSError, arrow.ArrowException) as error:
        raise ConfigError(f"{path} is not a table of runs (delete it to have it run again): {error}") from error


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("studies need pyarrow: pip install 'treespec[study]'") from error
    return pyarrow, parquet
