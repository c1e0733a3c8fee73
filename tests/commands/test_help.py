"""Every command says what its options are, with whatever typer and click are installed."""

from helpers.cli import succeed
from typer.main import get_command

from treespec.commands import app


def names(command, path=()):
    """The commands of an app, those of its groups too, as arguments."""
    found = [path]
    for name, inner in getattr(command, "commands", {}).items():
        found += names(inner, (*path, name))
    return found


def test_help():
    for path in names(get_command(app)):
        assert "Usage" in succeed(*path, "--help").output
