"""Files that are written whole or not at all; safetensors files, of which treespec's own formats are written, too."""

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from time import time
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from treespec.errors import CheckpointError

LEFT_OVER = 3600.0
"""Seconds without a change after which an unfinished file is taken for the remains of a killed process."""


def read_tensors(path: str | Path, format_name: str, names: Iterable[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The named tensors of a file and its metadata, whose "format" must be `format_name`; that ends in a version.

    Raises `CheckpointError`: no such file, not safetensors, damaged, of another format or version, or tensors missing.
    """
    with open_tensors(path) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != format_name:
            found = metadata.get("format", "none")
            raise CheckpointError(f"{path} has the format {found!r}, expected {format_name!r}: make the file again")
        missing = sorted(set(names) - set(file.keys()))
        if missing:
            raise CheckpointError(f"{path} lacks the tensors {', '.join(missing)}: make the file again")
        return {name: file.get_tensor(name) for name in names}, metadata


@contextmanager
def open_tensors(path: str | Path) -> Iterator[Any]:
    """A safetensors file, open for reading; errors, also while tensors are read, are a `CheckpointError`."""
    if not Path(path).is_file():
        raise CheckpointError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        message = f"{path} cannot be read ({error}): it is damaged, truncated or no safetensors file"
        raise CheckpointError(message) from error


def write_tensors(
    path: str | Path, format_name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a file for `read_tensors`, whole or not at all (`CheckpointError`)."""
    try:
        with whole(Path(path)) as scratch:
            save_file(dict(tensors), scratch, metadata={"format": format_name, **metadata})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be written ({error})") from error


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write in place of `path`, which it becomes at the end; of several writers the last wins."""
    for old in path.parent.glob(f"{escape(path.name)}.*.partial"):  # A killed process left it behind.
        with suppress(OSError):
            if time() - old.stat().st_mtime > LEFT_OVER:
                old.unlink()
    # Process ids are not unique across machines, and threads share one.
    scratch = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        yield scratch
        scratch.replace(path)
    finally:
        with suppress(OSError):
            scratch.unlink()
