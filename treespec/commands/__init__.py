"""The command line, `treespec COMMAND`: one module per command, and what they share in `console`."""

from __future__ import annotations

import os
import sys

try:
    import typer
except ImportError as error:
    raise SystemExit("treespec's commands need typer and rich: pip install 'treespec[cli]'") from error

from treespec.commands.train import export, train
from treespec.commands.writing import warm_up, write
from treespec.errors import TreespecError

app = typer.Typer(
    help="Tree speculative decoding: prepare drafters for a model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name, command in {"warm-up": warm_up, "write": write, "train": train, "export": export}.items():
    app.command(name)(command)


def main() -> None:
    """The entry point; errors of treespec become messages."""
    # With large pages growing caches and gradients cause half as many page faults (see docs/training.md).
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        app()
    except TreespecError as error:
        sys.exit(f"treespec: {error}")
