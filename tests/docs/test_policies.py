"""docs/policies.md: its snippets run, and its table names every policy with the children that it grows."""

import re
from pathlib import Path

from helpers.doc_snippets import run_page
from helpers.toy_models import TableLM, TableSource

from treespec import literature, policies
from treespec.policies.control.control import CHAIN_LENGTHS, DRAWN_SIZES, MOST_NODES, TREE_SIZES
from treespec.verification.rule import BaseRule

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
BY_NAME = {name: getattr(room, name) for room in (policies, literature) for name in room.__all__}
"""The policies of both rooms, and the literature's rules."""
EXAMPLES = {
    "Paths": "Paths([(0,), (1,), (0, 0)])",
    "KAry": "KAry((2, 2))",
    "delayed_branching": "delayed_branching(1, (2,))",
    "Sequoia": "Sequoia([[0.5, 0.2], [0.4]], 5)",
    "StochasticBeam": "StochasticBeam(2, 2)",
    "opt_tree": "opt_tree(5, 0.1)",
    "Truncated": "Truncated(KAry((2, 2)), 3)",
}


def table():
    """Name of a policy, the expression in its row, and its children."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
    return [(re.findall(r"\w+", row[0])[0], row[0].strip("`"), row[2]) for row in rows]


def test_the_table_names_every_policy():
    given = {"StopRule", "TreeBuilder", "as_policy", "optimal_paths"}
    given |= {name for name, part in BY_NAME.items() if isinstance(part, type) and issubclass(part, BaseRule)}
    names = {name for name, _, _ in table()} | set(re.findall(r"stop=(\w+)", PAGE))
    assert names == set(BY_NAME) - given


def test_children_are_what_the_table_says():
    for name, expression, children in table():
        code = EXAMPLES.get(name, expression.replace("(k", "(4").replace("(n)", "(6)"))
        policy = eval(code, dict(BY_NAME))
        sampling_schemes = policy.grow(TableSource([0, 1], TableLM(5)), 3).sampling_schemes
        assert ("selected" in sampling_schemes) == (children == "selected"), name
        if children != "sampled":
            assert policy.grow(TableSource([0, 1], TableLM(5), num_candidates=3), 3).sampling_schemes == {"selected"}


def test_what_the_control_chooses_among_is_on_the_page():
    least = f"{TREE_SIZES[0]} (sampling: {DRAWN_SIZES[0]})"
    trees = f"best-first trees of {least} to {TREE_SIZES[-1]} nodes ({MOST_NODES} on accelerators"
    chains = f"chains of {CHAIN_LENGTHS[0]} to {CHAIN_LENGTHS[-1]} tokens where only chains can be run)"
    assert f"{trees}; {chains}" in " ".join(PAGE.split())


def test_the_snippets_run(capsys):
    names = run_page("policies.md")
    assert names["best"].stats.mean_acceptance_length > 1
    outcomes = [line for line in capsys.readouterr().out.splitlines() if line.endswith(("True", "False"))]
    assert [line.split()[-1] for line in outcomes] == ["True"]
