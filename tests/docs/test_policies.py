"""docs/policies.md: its snippets run, and its table names every policy."""

import re
from pathlib import Path

from helpers.doc_snippets import run_page

from treespec import literature, policies
from treespec.verification.rule import BaseRule

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
BY_NAME = {name: getattr(room, name) for room in (policies, literature) for name in room.__all__}
"""The policies of both rooms, and the literature's rules."""


def test_the_table_names_every_policy():
    given = {"StopRule", "TreeBuilder", "as_policy", "optimal_paths"}
    given |= {name for name, part in BY_NAME.items() if isinstance(part, type) and issubclass(part, BaseRule)}
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    names = {re.findall(r"\w+", row)[0] for row in rows} | set(re.findall(r"stop=(\w+)", PAGE))
    assert names == set(BY_NAME) - given


def test_the_snippets_run(capsys):
    names = run_page("policies.md")
    assert names["best"].stats.mean_acceptance_length > 1
    outcomes = [line for line in capsys.readouterr().out.splitlines() if line.endswith(("True", "False"))]
    assert [line.split()[-1] for line in outcomes] == ["True"]
