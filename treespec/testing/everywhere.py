"""Every family, shape and edge case that a rule admits, one after another: the proof of a rule in one call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from treespec.errors import ConfigError, RuleMismatchError
from treespec.protocols import VerificationRule
from treespec.testing.drafter import SEVERAL_DRAFTERS, TOY_FAMILIES, ToyDrafter
from treespec.testing.enumeration import enumerate_traces
from treespec.testing.exact import ExactLaw, assert_lossless
from treespec.testing.laws import ConditionalLaw, law_pairs
from treespec.testing.shapes import SHAPES
from treespec.tree import IID, WITHOUT_REPLACEMENT, TreeBatch


class Case(NamedTuple):
    """What a rule is put to: the names of a proposal family, a shape and a pair of laws."""

    family: str
    shape: str
    laws: str


def assert_lossless_everywhere(rule: VerificationRule, is_exact: bool = False) -> dict[Case, ExactLaw]:
    """Assert that a rule emits the target's law in every case that its `check` admits; see `assert_lossless`.

    Args:
        rule: the rule. Its `check` decides what is put to it, so one that refuses everything is an error.
        is_exact: Fractions instead of float64: slower.

    Raises:
        AssertionError: the rule is not lossless; names the case.
        ConfigError: the rule admits no case at all.
    """
    found: dict[Case, ExactLaw] = {}
    for case, drafter, target in admitted_cases(rule, is_exact):
        try:
            found[case] = assert_lossless(rule, drafter, target)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    if not found:
        raise ConfigError(f"rule '{rule.name}' admits no toy tree: its check() refuses every family and shape")
    return found


def admitted_cases(rule: VerificationRule, is_exact: bool = False) -> Iterator[tuple[Case, ToyDrafter, ConditionalLaw]]:
    """The cases all of whose trees the rule's `check` admits, with a drafter and a target law for each."""
    for case in (Case(*names) for names in product(TOY_FAMILIES, SHAPES, law_pairs(2))):
        drafter, target = toy_case(case, is_exact)
        if _admits(rule, drafter):
            yield case, drafter, target


def toy_case(case: Case, is_exact: bool = False) -> tuple[ToyDrafter, ConditionalLaw]:
    """The drafter and the target law of a case, over three tokens, or two where three would take minutes."""
    family, shape, laws = case
    if family in (IID, SEVERAL_DRAFTERS):
        is_small = shape == "3-1-1" or (shape == "2x2" and laws != "generic")
    else:
        has_many_trees = laws in ("generic", "equal", "one-hot target")
        is_small = family == WITHOUT_REPLACEMENT and shape == "3-1-1" and has_many_trees
    target, drafts = law_pairs(2 if is_small else 3, is_exact)[laws]
    return ToyDrafter(family, SHAPES[shape], drafts), target


def _admits(rule: VerificationRule, drafter: ToyDrafter) -> bool:
    try:
        for _, tree in enumerate_traces(drafter):
            rule.check(TreeBatch.from_trees([tree.to_token_tree()]))
    except RuleMismatchError:
        return False
    return True
