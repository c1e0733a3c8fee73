"""Rules by their names, which trees they support, and what "auto" stands for."""

import subprocess
import sys

import pytest
import torch
from helpers.small_trees import DISTRIBUTIONS, IID, MIXED, SELECTED, WITHOUT_REPLACEMENT
from torch import Tensor

from treespec.errors import ConfigError, RuleMismatchError
from treespec.protocols import VerificationRule
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.verification import RULES, TargetWalk, Traversal, get_rule, resolve, supporting_rules, verify

CHAIN = TreeBatch.from_trees([TokenTree.chain([0, 1, 2], DISTRIBUTIONS)])


def test_every_rule_is_found_by_its_name() -> None:
    assert {"token", "block", "recursive", "target_walk", "traversal"} <= set(RULES)
    for name, rule in RULES.items():
        assert get_rule(name) is rule
        assert rule.name == name
    rule = Traversal()
    assert get_rule(rule) is rule


@pytest.mark.parametrize("rule", ["travesal", "", 3, None, torch.softmax])
def test_an_unknown_rule_raises(rule) -> None:
    with pytest.raises(ConfigError, match="rule"):
        get_rule(rule)


@pytest.mark.parametrize("name", ["token", "block"])
@pytest.mark.parametrize("trees", [SELECTED, IID, MIXED, WITHOUT_REPLACEMENT])
def test_chain_rules_refuse_branches_and_name_those_that_can(name: str, trees: TreeBatch) -> None:
    assert resolve(name, True, CHAIN) is RULES[name]
    with pytest.raises(RuleMismatchError, match=r"several children.*recursive.*traversal") as caught:
        resolve(name, True, trees)
    assert name not in supporting_rules(trees)
    assert all(rule in str(caught.value) for rule in supporting_rules(trees))


def test_auto() -> None:
    assert resolve("auto", True, SELECTED) == TargetWalk()
    for trees in (IID, MIXED, WITHOUT_REPLACEMENT, CHAIN):
        assert resolve("auto", True, trees) == Traversal()
        assert resolve("auto", False, trees) == TargetWalk()


def test_a_named_rule_is_checked_and_greedy_decoding_walks() -> None:
    assert resolve("recursive", True, IID) is RULES["recursive"]
    assert resolve("recursive", False, IID) == TargetWalk()
    for is_sampling in (True, False):
        with pytest.raises(RuleMismatchError):
            resolve("block", is_sampling, IID)
        with pytest.raises(ConfigError):
            resolve("blck", is_sampling, IID)


class Lossy:
    name = "lossy"
    is_lossless = False

    def reason_against(self, trees: TreeBatch) -> None:
        """None: it verifies every tree."""

    def verify(self, tree, target_probs, rng) -> Verdict:
        return Verdict((0,), 0, is_bonus=False)


def test_a_callers_own_rule_is_taken_as_it_is() -> None:
    rule: VerificationRule = Lossy()
    assert resolve(rule, False, IID) is rule
    assert verify(IID, uniform(1, 3, 3), rule) == [Verdict((0,), 0, is_bonus=False)]


def uniform(*shape: int) -> Tensor:
    return torch.full(shape, 1 / shape[-1])


def test_a_rule_is_added_by_registering_it() -> None:
    """A rule of another file takes part under its name, as those that ship with treespec do."""
    RULES.register("mine", "treespec.verification.target_walk:TargetWalk")
    try:
        assert "mine" in RULES
        assert resolve("mine", True, IID) == TargetWalk()
        with pytest.raises(ConfigError, match="choose another name"):
            RULES.register("mine", TargetWalk())
    finally:
        RULES.forget("mine")
    with pytest.raises(ConfigError, match="no verification rule is called 'mine'"):
        get_rule("mine")


def test_rules_of_the_literature_are_imported_when_they_are_named() -> None:
    code = """
import sys
import treespec
from treespec.verification import RULES, get_rule
assert "k_seq" in RULES and get_rule("traversal")
assert not [name for name in sys.modules if name.startswith("treespec.literature")]
assert get_rule("k_seq").name == "k_seq"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
