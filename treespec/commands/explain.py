"""`treespec explain`: the textbook's round with given numbers."""

import re
from dataclasses import asdict
from typing import Annotated

import typer

from treespec.commands.console import print_json
from treespec.commands.options import JsonOption
from treespec.errors import ConfigError
from treespec.literature.textbook import explain_round

EXAMPLES = """Example:

treespec explain --target 0.3,0.2,0.1 --draft 0.2,0.4,0.5 --coins 0.9,0.3,0.6"""


def run(
    target: Annotated[str, typer.Option(help="The target's probabilities of the draft tokens.")],
    draft: Annotated[str, typer.Option(help="The draft's.")],
    coins: Annotated[str, typer.Option(help="One uniform number per token.")],
    as_json: JsonOption = False,
) -> None:
    """Why each draft token of a chain is accepted or rejected, and how many tokens are appended.

    Numbers are separated by commas or spaces. Exit code 0: done; 2: not probabilities, or not equally many.
    """
    given = {"--target": target, "--draft": draft, "--coins": coins}
    numbers = [_numbers(name, text) for name, text in given.items()]
    try:
        found = explain_round(*numbers)
    except ConfigError as error:
        raise ConfigError(f"{', '.join(given)}: {error}") from error
    if as_json:
        print_json({**asdict(found), "num_accepted": found.num_accepted})
    else:
        print(found)


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(number) for number in re.split(r"[\s,;]+", text.strip())]
    except ValueError as error:
        raise ConfigError(f"{name} takes numbers separated by commas, such as 0.3,0.2, got {text!r}") from error
