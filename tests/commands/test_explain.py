"""`treespec explain`."""

import json

from helpers import cli

from treespec.literature.textbook import explain_round


def invoke(target, draft, coins, *options):
    return cli.invoke("explain", "--target", target, "--draft", draft, "--coins", coins, *options)


def test_the_textbooks_round_is_explained():
    wanted = explain_round([0.3, 0.2, 0.1], [0.2, 0.4, 0.5], [0.9, 0.3, 0.6])
    assert invoke("0.3,0.2,0.1", "0.2 0.4 0.5", "0.9, 0.3, 0.6").stdout.strip() == str(wanted)
    found = json.loads(invoke("0.3,0.2,0.1", "0.2,0.4,0.5", "0.9,0.3,0.6", "--json").stdout)
    assert found["num_accepted"] == wanted.num_accepted
    assert [step["verdict"] for step in found["steps"]] == [step.verdict for step in wanted.steps]
