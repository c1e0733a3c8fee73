"""The command line, `treespec COMMAND`: a module per command; they share `options`, `models` and `console`."""

import os
import sys
import warnings

try:
    import typer
except ImportError as error:
    raise SystemExit("treespec's commands need typer and rich: pip install 'treespec[cli]'") from error

from treespec.commands import ablate, adapt, bench, chat, check, explain, generate, serve, trace, train, tune, writing
from treespec.commands.console import say, warn
from treespec.errors import TreespecError, TreespecWarning

app = typer.Typer(
    help="Tree speculative decoding: test a model with it, and prepare drafters for the model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (generate, chat, serve, bench, tune, ablate, check, explain, adapt):
    app.command(module.__name__.rpartition(".")[2], epilog=module.EXAMPLES)(module.run)
for command in (writing.warm_up, writing.write):
    app.command(epilog=writing.EXAMPLES)(command)
for command in (train.train, train.export):
    app.command(epilog=train.EXAMPLES)(command)
app.add_typer(trace.app, name="trace")


def main() -> None:
    """The entry point; errors of treespec and of files become messages with exit code 2."""
    # With large pages growing caches and gradients cause half as many page faults (see docs/training.md).
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    warnings.showwarning = _show_warning
    try:
        app()
    except (TreespecError, OSError) as error:
        say(f"treespec: {error}")
        sys.exit(2)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Treespec's own warnings in a line; those of other libraries speak of their code and are left out."""
    if issubclass(category, TreespecWarning):
        warn(str(message))
