"""The exact oracle: a verification rule's output distribution by enumeration, in float64 or in rational arithmetic.

A rule and a toy drafter are run once for every way in which their coins and draws can fall; the weights of all runs,
each extended to a fixed length with the target's own distribution, add up to the joint distribution that the rule
really emits. With distributions of `fractions.Fraction` a lossless rule has error 0 and nothing else.

    target, draft = RandomDistributions(3, seed=1, is_exact=True), RandomDistributions(3, seed=2, is_exact=True)
    assert_lossless(MyRule(), ToyDrafter(WITHOUT_REPLACEMENT, FixedShape.kary(2, 2), (draft,)), target)

Sampled text is compared with a model's exact distribution (`enumerate_continuations`) by `g_test`.
`assert_lossless_everywhere(MyRule())` goes through every sampling scheme, shape and edge case that the rule supports.
"""

from treespec.testing.continuations import Continuations, FirstToken, enumerate_continuations, g_test, uncached
from treespec.testing.drafter import (
    SEVERAL_DRAFTERS,
    TOY_SCHEMES,
    ConditionalProbs,
    RandomDistributions,
    ToyDrafter,
    distribution_pairs,
    toy_distribution,
)
from treespec.testing.exact import (
    Case,
    EnumeratingSource,
    ExactDistribution,
    VerifyingRule,
    assert_lossless,
    assert_lossless_everywhere,
    enumerate_traces,
    exact_distribution,
    supported_cases,
    toy_case,
)
from treespec.testing.trees import SHAPES, AdaptiveDepth, AdaptiveWidth, Context, FixedShape, Shape, ToyTree
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT

__all__ = [
    "IID",
    "MIXED",
    "SELECTED",
    "SEVERAL_DRAFTERS",
    "SHAPES",
    "TOY_SCHEMES",
    "WITHOUT_REPLACEMENT",
    "AdaptiveDepth",
    "AdaptiveWidth",
    "Case",
    "ConditionalProbs",
    "Context",
    "Continuations",
    "EnumeratingSource",
    "ExactDistribution",
    "FirstToken",
    "FixedShape",
    "RandomDistributions",
    "Shape",
    "ToyDrafter",
    "ToyTree",
    "VerifyingRule",
    "assert_lossless",
    "assert_lossless_everywhere",
    "distribution_pairs",
    "enumerate_continuations",
    "enumerate_traces",
    "exact_distribution",
    "g_test",
    "supported_cases",
    "toy_case",
    "toy_distribution",
    "uncached",
]
