"""The console that commands write to: messages, progress, results as JSON; checks of the files they are to write."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console

from treespec.errors import ConfigError

CONSOLE = Console(stderr=True)


def say(text: str, style: str | None = None) -> None:
    """A line for people, next to the results."""
    CONSOLE.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    say(f"treespec: warning: {text}")


def print_json(found: Any, indent: int | None = 1) -> None:
    """The results, for programs."""
    print(json.dumps(found, indent=indent), flush=True)


def check_out_folder(folder: Path) -> None:
    """Raise `ConfigError`, before anything is measured, for a folder that cannot be made or written to."""
    _check_writable(folder, next(path for path in (folder, *folder.absolute().parents) if path.exists()))


def check_out_file(path: Path) -> None:
    """Raise `ConfigError`, before anything is measured, for a file that cannot be written."""
    if path.is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder")
    _check_writable(path, path.parent)


def _check_writable(path: Path, folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written: {folder} is not a folder that you may write to")


def progress_bar(console: Console = CONSOLE) -> bars.Progress:
    """A progress bar: the task, how much of it is done, and the remaining time."""
    counts = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn())
    times = (bars.TimeElapsedColumn(), bars.TextColumn("left:"), bars.TimeRemainingColumn())
    return bars.Progress(*counts, *times, console=console)


def command_line() -> str:
    """The command as given, but with absolute paths cut to their last part."""
    return " ".join(["treespec", *(re.sub(r"(^|=)[/~].*?([^/]*)/?$", r"\1\2", argument) for argument in sys.argv[1:])])
