"""What the commands share: options, the console, progress, devices."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import progress as bars
from rich.console import Console

from treespec.errors import ConfigError

if TYPE_CHECKING:
    import torch

TargetArgument = Annotated[str, typer.Argument(help="The target: a hub name or a folder.")]
SeedOption = Annotated[int, typer.Option(help="Of all random numbers.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="PyTorch's threads; default: its own choice.")]

CONSOLE = Console(stderr=True)


def use_threads(threads: int | None) -> None:
    import torch

    torch.set_num_threads(threads or torch.get_num_threads())


def device_of(name: str | None) -> torch.device:
    """The device of that name, or a GPU if there is one; a `ConfigError` for a device that does not exist."""
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, dtype=torch.float32, device=name).tolist()
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA raises an AssertionError.
        raise ConfigError(f"--device must be an existing cpu, cuda or cuda:NUMBER, got {name!r} ({error})") from error
    return torch.device(name)


def check_out_folder(folder: Path) -> None:
    """Raise `ConfigError`, before anything is measured, for a folder that cannot be made or written to."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(f"{folder} cannot be written: {existing} is not a folder that you may write to")


def check_out_file(path: Path) -> None:
    """Raise `ConfigError`, before anything is measured, for a file that cannot be written."""
    if path.is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written: {path.parent} is not a folder that you may write to")


def progress_bar() -> bars.Progress:
    """What is being done, how much of it is done, and how long the rest will take."""
    counts = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn())
    times = (bars.TimeElapsedColumn(), bars.TextColumn("left:"), bars.TimeRemainingColumn())
    return bars.Progress(*counts, *times, console=CONSOLE)


def command_line() -> str:
    """The command as given, but with absolute paths cut to their last part."""
    return " ".join(["treespec", *(re.sub(r"(^|=)[/~].*?([^/]*)/?$", r"\1\2", argument) for argument in sys.argv[1:])])
