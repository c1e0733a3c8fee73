"""The proof of a rule in one call: it goes everywhere that the rule supports, and says where a mistake shows."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from helpers.mutants import CorrectionFromTarget

from treespec.errors import ConfigError
from treespec.testing import (
    IID,
    SHAPES,
    TOY_SCHEMES,
    AdaptiveWidth,
    Case,
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    assert_lossless,
    assert_lossless_everywhere,
    distribution_pairs,
    exact_distribution,
    supported_cases,
    toy_distribution,
)
from treespec.tree import TreeBatch
from treespec.verification import RULES, ThresholdAcceptance

TARGET, DRAFT = RandomDistributions(3, 1, is_exact=True), RandomDistributions(3, 2, is_exact=True)


def test_a_chain_rule_is_put_to_every_chain() -> None:
    found = assert_lossless_everywhere(RULES["token"], is_exact=True)
    assert {result.error for result in found.values()} == {0}
    chains = {Case(scheme, "chain", probs) for scheme in TOY_SCHEMES for probs in distribution_pairs(2)}
    # Draws without replacement of a one-hot distribution are chains, whatever the shape; three siblings are none.
    others = set(found) - chains
    assert chains <= set(found)
    assert Case("without_replacement", "2x2", "one-hot draft") in others
    assert not {case for case in others if case.distributions == "generic" and case.shape != "adaptive width"}


def test_fixed_widths_are_asked_for() -> None:
    cases = [case for case, *_ in supported_cases(RULES["k_seq"])]
    assert {case.shape for case in cases} == set(SHAPES) - {"adaptive width"}
    assert {case.scheme for case in cases if case.shape == "2x2" and case.distributions == "generic"} == {IID}


@dataclass(frozen=True)
class Biased(CorrectionFromTarget):
    name = "biased"
    is_lossless = True

    def reason_against(self, trees: TreeBatch) -> str | None:
        return None if trees.sampling_schemes <= {IID} else "it verifies i.i.d. siblings"


class Unusable(Biased):
    name = "unusable"

    def reason_against(self, trees: TreeBatch) -> str | None:
        return "it verifies nothing"


def test_a_mistake_is_named_with_its_case() -> None:
    with pytest.raises(AssertionError, match=r"scheme='iid', shape='chain', distributions='generic'.*total variation"):
        assert_lossless_everywhere(Biased())


def test_a_rule_that_supports_no_tree_is_not_proven() -> None:
    with pytest.raises(ConfigError, match="'unusable' supports no toy tree"):
        assert_lossless_everywhere(Unusable())


def test_one_pair_of_distributions_may_hide_what_all_of_them_show() -> None:
    """No drafted token is above the threshold on this pair: there the lossy rule is the target walk."""
    target, draft = RandomDistributions(3, 1), RandomDistributions(3, 2)
    assert_lossless(ThresholdAcceptance(), ToyDrafter(IID, FixedShape.kary(2), (draft,)), target)
    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless_everywhere(ThresholdAcceptance())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ToyDrafter("idd", AdaptiveWidth(), (DRAFT,)), "no sampling scheme is called 'idd'; choose from sel"),
        (lambda: ToyDrafter(IID, AdaptiveWidth(), ()), "at least one conditional distribution"),
        (lambda: ToyDrafter(IID, AdaptiveWidth(), DRAFT), "must be a tuple"),  # pyright: ignore
        (lambda: toy_distribution([0, 0]), "not all zero"),
        (lambda: toy_distribution([2, -1]), "not negative"),
        (
            lambda: exact_distribution(
                RULES["recursive"], ToyDrafter(IID, FixedShape.kary(1, 1), (DRAFT,)), TARGET, depth=1
            ),
            "at least that of the trees, 2, got 1",
        ),
    ],
)
def test_misuse_is_named(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_the_edge_cases_are_what_they_are_called() -> None:
    for vocab_size in (1, 2, 3):
        pairs = distribution_pairs(vocab_size, is_exact=True)
        root = {name: (target(()), drafts[0](())) for name, (target, drafts) in pairs.items()}
        assert (root["equal"][0] == root["equal"][1]).all()
        assert max(root["one-hot target"][0]) == max(root["one-hot draft"][1]) == Fraction(1)
        assert vocab_size == 1 or sum(root["disjoint"][0] * root["disjoint"][1]) == 0
    assert any((probs == 0).any() for probs in (pairs["zeros"][0]((i,)) for i in range(3)))
