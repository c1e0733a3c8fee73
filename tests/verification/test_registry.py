"""Rules by their names, which trees they support, and what "auto" stands for."""

from typing import Any

import pytest
import torch
from helpers.small_trees import DISTRIBUTIONS, IID, MIXED, SELECTED, WITHOUT_REPLACEMENT, pair
from helpers.tiny import tiny_llama
from helpers.toy_rule import ToyRule
from torch import Tensor

from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import ConfigError, RuleMismatchError
from treespec.protocols import RandomSource, VerifiableTree, VerificationRule
from treespec.testing.exact import enumerate_traces
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.verification import RULES, TargetWalk, Traversal, get_rule, resolve, supporting_rules, verify
from treespec.verification.dense.forms import has_dense_form
from treespec.vllm.options import Options

CHAIN = TreeBatch.from_trees([TokenTree.chain([0, 1, 2], DISTRIBUTIONS)])


def test_every_rule_is_found_by_its_name() -> None:
    assert {"token", "block", "recursive", "target_walk", "traversal"} <= set(RULES)
    for name, rule in RULES.items():
        assert get_rule(name) is rule
        assert rule.name == name
    rule = Traversal()
    assert get_rule(rule) is rule


def test_an_unknown_rule_raises() -> None:
    for rule in ("travesal", "", 3, None, torch.softmax):
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


def test_the_tree_rules_support_everything() -> None:
    for trees in (SELECTED, IID, MIXED, WITHOUT_REPLACEMENT, CHAIN, pair([0, 0], is_width_fixed=False)):
        assert {"target_walk", "recursive", "traversal"} <= set(supporting_rules(trees))
        assert all(RULES[name].is_lossless for name in supporting_rules(trees))


def test_auto_and_a_named_rule_which_is_checked_and_greedy_decoding_walks() -> None:
    assert resolve("auto", True, SELECTED) == TargetWalk()
    for trees in (IID, MIXED, WITHOUT_REPLACEMENT, CHAIN):
        assert resolve("auto", True, trees) == Traversal()
        assert resolve("auto", False, trees) == TargetWalk()
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


@pytest.fixture
def registered():
    """Registers a rule, which is forgotten after the test."""
    yield RULES.register
    RULES.forget("toy")


@pytest.mark.parametrize("rule", ["helpers.toy_rule:ToyRule", ToyRule, ToyRule()], ids=["path", "class", "object"])
def test_a_rule_is_one_new_file_and_the_line_that_registers_it(registered, rule) -> None:
    registered("toy", rule)
    assert isinstance(resolve("toy", True, IID), ToyRule)
    assert "toy" in supporting_rules(IID)
    with pytest.raises(ConfigError, match="choose another name"):
        registered("toy", TargetWalk())
    speculation = TreeSpeculation(TokenRecycling(), tree=4, verification="toy", seed=0)
    tiny_llama().generate(
        torch.tensor([[5, 9, 2, 7]]), max_new_tokens=6, do_sample=True, eos_token_id=None, custom_generate=speculation
    )
    assert (speculation.stats.num_emitted_tokens, speculation.stats.num_target_passes) == (6, 5)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("nowhere.module:Rule", "rule 'toy' cannot be imported as 'nowhere.module:Rule': No module named 'nowhere'"),
        ("helpers.toy_rule:Nope", "rule 'toy' cannot be imported as .*has no attribute 'Nope'"),
        ("helpers.toy_rule", "rule 'toy' cannot be imported"),
        ("helpers.toy_rule:Verdict", "a verification rule is"),
    ],
)
def test_a_registration_that_leads_nowhere_is_named_and_harms_no_other_rule(registered, part, message) -> None:
    registered("toy", part)
    with pytest.raises(ConfigError, match=message):
        get_rule("toy")
    with pytest.raises(RuleMismatchError, match=r"lossless rules that can: .*traversal"):
        resolve("block", True, IID)
    with pytest.raises(ConfigError, match=r"no verification rule is called 'nope'; choose from auto, target_walk"):
        Options(verification="nope")
    assert "toy" not in supporting_rules(IID)


def test_what_cannot_be_registered() -> None:
    with pytest.raises(ConfigError, match="a verification rule is"):
        RULES.register("toy", torch.softmax)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="called 'auto' is there already; choose another name"):
        RULES.register("auto", TargetWalk())
    assert not {"toy", "auto"} & {name for name, _ in RULES.items()}


class Drawing:
    """A source of random outcomes that notes the depths at which tokens are drawn."""

    def __init__(self, rng: RandomSource, tree: VerifiableTree) -> None:
        self.flip, self._rng, self._tree = rng.flip, rng, tree
        self.depths: list[int] = []

    def pick(self, node: int, weights: Any) -> int:
        self.depths.append(self._tree.depths[node])
        return self._rng.pick(node, weights)


DEEP = TreeBatch.from_trees([TokenTree(torch.tensor([0, 1, 2, 0, 1]), torch.tensor([-1, 0, 0, 1, 1]))])


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if has_dense_form(rule)])
def test_what_has_a_dense_form_draws_at_most_one_token_per_depth(name: str) -> None:
    """A server's seeds depend on it: nodes of one depth share a number."""
    rule, sources = RULES[name], []
    for trees in (SELECTED, IID, MIXED, WITHOUT_REPLACEMENT, CHAIN, DEEP):
        if rule.reason_against(trees) is not None:
            continue
        tree = trees.trees[0]

        def run(rng: RandomSource, tree: TokenTree = tree) -> Verdict:
            sources.append(Drawing(rng, tree))
            return rule.verify(tree, uniform(tree.num_nodes, 3).__getitem__, sources[-1])

        assert sum(float(weight) for weight, _ in enumerate_traces(run)) == pytest.approx(1)
    assert all(len(set(source.depths)) == len(source.depths) > 0 for source in sources)
