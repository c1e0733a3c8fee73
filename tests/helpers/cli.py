"""The command line, called in this process."""

from typer.testing import CliRunner

from treespec.commands import app


def invoke(*arguments, **options):
    """`treespec` with these arguments."""
    return CliRunner().invoke(app, list(map(str, arguments)), **options)


def succeed(*arguments, **options):
    """The result of `treespec` with these arguments, which has to end well."""
    done = invoke(*arguments, **options)
    assert done.exit_code == 0, done.output
    return done
