"""The oracle enumerates everything and names mistakes; the proof of a rule goes everywhere that the rule supports."""

from fractions import Fraction

import numpy as np
import pytest
from helpers.mutants import mistaken

from treespec.errors import ConfigError
from treespec.testing import (
    IID,
    SELECTED,
    SHAPES,
    TOY_SCHEMES,
    WITHOUT_REPLACEMENT,
    AdaptiveWidth,
    Case,
    EnumeratingSource,
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    ToyTree,
    assert_lossless,
    assert_lossless_everywhere,
    distribution_pairs,
    enumerate_traces,
    exact_distribution,
    supported_cases,
    toy_distribution,
)
from treespec.tree import TreeBatch, Verdict
from treespec.verification import RULES

EXACT = RandomDistributions(3, seed=1, is_exact=True)


def test_enumeration_is_complete_and_weighted() -> None:
    weights = toy_distribution([1, 2, 3], is_exact=True)

    def run(rng) -> tuple:
        first = rng.pick(0, weights * 7)  # Unnormalised weights are allowed.
        return first, rng.flip(1, Fraction(1, 4)) if first == 2 else None

    traces = {outcome: weight for weight, outcome in enumerate_traces(run)}
    half = Fraction(1, 2)
    assert traces == {
        (0, None): Fraction(1, 6),
        (1, None): Fraction(1, 3),
        (2, True): half / 4,
        (2, False): 3 * half / 4,
    }

    def certain(rng) -> tuple:
        return rng.flip(0, 0), rng.flip(1, 1), rng.pick(2, np.array([0.0, 1.0, 0.0]))

    assert list(enumerate_traces(certain)) == [(1, (False, True, 1))], "impossible branches are not taken"


def test_what_no_random_source_could_do_is_refused() -> None:
    for prob in (-0.1, 1.1):
        with pytest.raises(AssertionError, match="with probability"):
            EnumeratingSource().flip(0, prob)
    with pytest.raises(AssertionError, match="no mass"):
        EnumeratingSource().pick(0, np.zeros(2))
    rng = EnumeratingSource()
    rng.pick(3, np.ones(2))
    with pytest.raises(AssertionError, match="draw of node 3 is used twice"):
        rng.pick(3, np.ones(2))
    rng.flip(3, 0.5)
    with pytest.raises(AssertionError, match="coin of node 3 is used twice"):
        rng.flip(3, 0.5)


def test_the_oracle_reports_a_known_error_exactly() -> None:
    class AlwaysFirst:
        """Emits token 0, always: its distribution is known."""

        def verify(self, tree, target_probs, rng) -> Verdict:
            return Verdict((0,), 0, is_bonus=True)

    result = exact_distribution(AlwaysFirst(), lambda rng: ToyTree(), EXACT, depth=1)
    assert result.total_variation == 1 - EXACT(())[0]
    assert result.probs.shape == (3, 3)
    assert result.probs.sum() == result.total_weight == 1
    assert result.mean_accepted == 0
    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless(AlwaysFirst(), lambda rng: ToyTree(), EXACT)
    drafter = ToyDrafter(WITHOUT_REPLACEMENT, FixedShape.kary(2), (RandomDistributions(3, seed=2, is_exact=True),))
    assert assert_lossless(RULES["traversal"], drafter, EXACT, depth=3).probs.shape == (3, 3, 3, 3)  # Beyond its depth.


def test_verdicts_that_fit_no_tree_are_refused() -> None:
    class Constant:
        def verify(self, tree, target_probs, rng) -> Verdict:
            return verdict

    for path, is_bonus in (((1,), True), ((0, 2), True), ((0, 1), True), ((0, 1, 2, 3), False)):
        verdict = Verdict(path, 0, is_bonus)
        with pytest.raises(AssertionError):
            exact_distribution(Constant(), ToyDrafter(SELECTED, SHAPES["chain"], (EXACT,)), EXACT)


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
    given = [Case(scheme, shape, "generic") for scheme in TOY_SCHEMES for shape in SHAPES]
    cases = [case for case, *_ in supported_cases(RULES["k_seq"], cases=given)]
    assert {case.shape for case in cases} == set(SHAPES) - {"adaptive width"}
    assert {case.scheme for case in cases if case.shape == "2x2"} == {IID}


class Biased:
    """Recursive rejection that keeps its residual as it is; for i.i.d. siblings only."""

    name, is_lossless = "biased", True
    verify = mistaken("recursive", "probs = rest / total if total > 0 else probs", "probs = probs").verify

    def reason_against(self, trees: TreeBatch) -> str | None:
        return None if trees.sampling_schemes <= {IID} else "it verifies i.i.d. siblings"


class Unusable(Biased):
    name = "unusable"

    def reason_against(self, trees: TreeBatch) -> str | None:
        return "it verifies nothing"


def test_a_mistake_is_named_with_its_case_and_a_rule_that_supports_no_tree_is_not_proven() -> None:
    with pytest.raises(AssertionError, match=r"scheme='iid', shape='chain', distributions='generic'.*total variation"):
        assert_lossless_everywhere(Biased())
    with pytest.raises(ConfigError, match="'unusable' supports no toy tree"):
        assert_lossless_everywhere(Unusable())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ToyDrafter("idd", AdaptiveWidth(), (DRAFT,)), "no sampling scheme is called 'idd'; choose from sel"),
        (lambda: ToyDrafter(IID, AdaptiveWidth(), ()), "must be a tuple, not empty"),
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
