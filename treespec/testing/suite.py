"""Every sampling scheme, shape and edge case that a rule supports, one after another: its proof in one call."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from treespec.errors import ConfigError
from treespec.protocols import VerificationRule
from treespec.testing.distributions import ConditionalProbs, distribution_pairs
from treespec.testing.drafter import SEVERAL_DRAFTERS, TOY_SCHEMES, ToyDrafter
from treespec.testing.exact import ExactDistribution, assert_lossless, enumerate_traces
from treespec.testing.shapes import SHAPES
from treespec.tree import IID, WITHOUT_REPLACEMENT, TreeBatch


class Case(NamedTuple):
    """The names of a sampling scheme, a shape and a pair of distributions."""

    scheme: str
    shape: str
    distributions: str


def assert_lossless_everywhere(rule: VerificationRule, is_exact: bool = False) -> dict[Case, ExactDistribution]:
    """`assert_lossless` in every case that the rule's `reason_against` does not exclude.

    `is_exact` computes in Fractions instead of float64, which is slower. Raises AssertionError: the rule is not
    lossless; names the case. ConfigError: the rule supports no case at all.
    """
    found: dict[Case, ExactDistribution] = {}
    for case, drafter, target in supported_cases(rule, is_exact):
        try:
            found[case] = assert_lossless(rule, drafter, target)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    if not found:
        raise ConfigError(f"rule '{rule.name}' supports no toy tree: reason_against() excludes all of them")
    return found


def supported_cases(
    rule: VerificationRule, is_exact: bool = False
) -> Iterator[tuple[Case, ToyDrafter, ConditionalProbs]]:
    """The cases whose trees the rule supports, all of them, with a drafter and a target distribution for each."""
    for case in (Case(*names) for names in product(TOY_SCHEMES, SHAPES, distribution_pairs(2))):
        drafter, target = toy_case(case, is_exact)
        batches = (TreeBatch.from_trees([tree.to_token_tree()]) for _, tree in enumerate_traces(drafter))
        if all(rule.reason_against(trees) is None for trees in batches):
            yield case, drafter, target


def toy_case(case: Case, is_exact: bool = False) -> tuple[ToyDrafter, ConditionalProbs]:
    """The drafter and the target distribution of a case, over three tokens, or two where three would take minutes."""
    scheme, shape, distributions = case
    if scheme in (IID, SEVERAL_DRAFTERS):
        is_small = shape == "3-1-1" or (shape == "2x2" and distributions != "generic")
    else:
        has_many_trees = distributions in ("generic", "equal", "one-hot target")
        is_small = scheme == WITHOUT_REPLACEMENT and shape == "3-1-1" and has_many_trees
    target, drafts = distribution_pairs(2 if is_small else 3, is_exact)[distributions]
    return ToyDrafter(scheme, SHAPES[shape], drafts), target
