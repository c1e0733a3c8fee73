"""Every family, shape and edge case that a rule admits, one after another: the proof of a rule in one call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from treespec.errors import ConfigError
from treespec.protocols import VerificationRule
from treespec.testing.distributions import ConditionalProbs, distribution_pairs
from treespec.testing.drafter import SEVERAL_DRAFTERS, TOY_SCHEMES, ToyDrafter
from treespec.testing.enumeration import enumerate_traces
from treespec.testing.exact import ExactDistribution, assert_lossless
from treespec.testing.shapes import SHAPES
from treespec.tree import IID, WITHOUT_REPLACEMENT, TreeBatch


class Case(NamedTuple):
    """What a rule is put to: the names of a proposal family, a shape and a pair of distributions."""

    family: str
    shape: str
    distributions: str


def assert_lossless_everywhere(rule: VerificationRule, is_exact: bool = False) -> dict[Case, ExactDistribution]:
    """Assert that a rule emits the target's distribution in every case that its `check` admits; see `assert_lossless`.

    Args:
        rule: the rule. Its `check` decides what is put to it, so one that refuses everything is an error.
        is_exact: Fractions instead of float64: slower.

    Raises:
        AssertionError: the rule is not lossless; names the case.
        ConfigError: the rule admits no case at all.
    """
    found: dict[Case, ExactDistribution] = {}
    for case, drafter, target in supported_cases(rule, is_exact):
        try:
            found[case] = assert_lossless(rule, drafter, target)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    if not found:
        raise ConfigError(f"rule '{rule.name}' admits no toy tree: its check() refuses every family and shape")
    return found


def supported_cases(
    rule: VerificationRule, is_exact: bool = False
) -> Iterator[tuple[Case, ToyDrafter, ConditionalProbs]]:
    """The cases all of whose trees the rule's `check` admits, with a drafter and a target distribution for each."""
    for case in (Case(*names) for names in product(TOY_SCHEMES, SHAPES, distribution_pairs(2))):
        drafter, target = toy_case(case, is_exact)
        if _supports(rule, drafter):
            yield case, drafter, target


def toy_case(case: Case, is_exact: bool = False) -> tuple[ToyDrafter, ConditionalProbs]:
    """The drafter and the target distribution of a case, over three tokens, or two where three would take minutes."""
    family, shape, distributions = case
    if family in (IID, SEVERAL_DRAFTERS):
        is_small = shape == "3-1-1" or (shape == "2x2" and distributions != "generic")
    else:
        has_many_trees = distributions in ("generic", "equal", "one-hot target")
        is_small = family == WITHOUT_REPLACEMENT and shape == "3-1-1" and has_many_trees
    target, drafts = distribution_pairs(2 if is_small else 3, is_exact)[distributions]
    return ToyDrafter(family, SHAPES[shape], drafts), target


def _supports(rule: VerificationRule, drafter: ToyDrafter) -> bool:
    batches = (TreeBatch.from_trees([tree.to_token_tree()]) for _, tree in enumerate_traces(drafter))
    return all(rule.reason_against(trees) is None for trees in batches)
