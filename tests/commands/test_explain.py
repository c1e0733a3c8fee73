"""`treespec explain`."""

import json

import pytest
from helpers import cli

from treespec.errors import ConfigError
from treespec.literature.textbook import explain_round


def invoke(target, draft, coins, *options):
    return cli.invoke("explain", "--target", target, "--draft", draft, "--coins", coins, *options)


def test_the_textbooks_round_is_explained():
    wanted = explain_round([0.3, 0.2, 0.1], [0.2, 0.4, 0.5], [0.9, 0.3, 0.6])
    assert invoke("0.3,0.2,0.1", "0.2 0.4 0.5", "0.9, 0.3, 0.6").stdout.strip() == str(wanted)
    found = json.loads(invoke("0.3,0.2,0.1", "0.2,0.4,0.5", "0.9,0.3,0.6", "--json").stdout)
    assert found["num_accepted"] == wanted.num_accepted
    assert [step["verdict"] for step in found["steps"]] == [step.verdict for step in wanted.steps]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (("a,b", "0.5,0.5", "0,0"), "separated by commas"),
        (("0.5", "0.5,0.5", "0"), "target_token_probs must have shape [2], got [1]"),
        (("0.5", "0.5", "nan"), "coins must lie in [0, 1], got [nan]"),
        (("", "0.5", "0"), "--target takes numbers separated by commas"),
    ],
)
def test_wrong_numbers_are_named(numbers, words):
    found = invoke(*numbers).exception
    assert isinstance(found, ConfigError)
    assert words in str(found)
