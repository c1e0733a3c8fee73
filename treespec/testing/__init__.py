"""The exact oracle: a verification rule's output law by enumeration, in float64 or in rational arithmetic.

Sampling cannot see a bias of a thousandth; enumeration sees a bias of any size. A rule and a toy drafter are run once
for every way in which their coins and draws can fall; the weights of all runs, each extended to a fixed length with
the target's own law, add up to the joint law that the rule really emits. With laws of `fractions.Fraction` the result
is exact, so that a lossless rule has error 0 and nothing else.

    target, draft = RandomLaws(3, seed=1, is_exact=True), RandomLaws(3, seed=2, is_exact=True)
    assert_lossless(MyRule(), ToyDrafter(WITHOUT_REPLACEMENT, FixedShape.kary(2, 2), (draft,)), target)

One pair of laws shows the mistakes that matter for it; `assert_lossless_everywhere(MyRule())` goes through every
family, shape and edge case that the rule admits.
"""

from treespec.testing.drafter import SEVERAL_DRAFTERS, TOY_FAMILIES, ToyDrafter
from treespec.testing.enumeration import EnumeratingChooser, enumerate_traces
from treespec.testing.everywhere import Case, admitted_cases, assert_lossless_everywhere, toy_case
from treespec.testing.exact import ExactLaw, WalkingRule, assert_lossless, exact_law
from treespec.testing.laws import ConditionalLaw, RandomLaws, law_pairs, toy_law
from treespec.testing.shapes import SHAPES, AdaptiveDepth, AdaptiveWidth, FixedShape, Shape
from treespec.testing.trees import Context, ToyTree
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT

__all__ = [
    "IID",
    "MIXED",
    "SELECTED",
    "SEVERAL_DRAFTERS",
    "SHAPES",
    "TOY_FAMILIES",
    "WITHOUT_REPLACEMENT",
    "AdaptiveDepth",
    "AdaptiveWidth",
    "Case",
    "ConditionalLaw",
    "Context",
    "EnumeratingChooser",
    "ExactLaw",
    "FixedShape",
    "RandomLaws",
    "Shape",
    "ToyDrafter",
    "ToyTree",
    "WalkingRule",
    "admitted_cases",
    "assert_lossless",
    "assert_lossless_everywhere",
    "enumerate_traces",
    "exact_law",
    "law_pairs",
    "toy_case",
    "toy_law",
]
