"""The exact oracle: a verification rule's output distribution by enumeration, in float64 or in rational arithmetic.

A rule and a toy drafter are run once for every way in which their coins and draws can fall; the weights of all runs,
each extended to a fixed length with the target's own distribution, add up to the joint distribution that the rule
really emits. With distributions of `fractions.Fraction` a lossless rule has error 0 and nothing else.

    target, draft = RandomDistributions(3, seed=1, is_exact=True), RandomDistributions(3, seed=2, is_exact=True)
    assert_lossless(MyRule(), ToyDrafter(WITHOUT_REPLACEMENT, FixedShape.kary(2, 2), (draft,)), target)

Sampled text is compared with a model's exact distribution (`enumerate_continuations`) by `g_test`.
`assert_lossless_everywhere(MyRule())` goes through every sampling scheme, shape and edge case that the rule supports.
"""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.testing.continuations import Continuations as Continuations
    from treespec.testing.continuations import FirstToken as FirstToken
    from treespec.testing.continuations import enumerate_continuations as enumerate_continuations
    from treespec.testing.continuations import g_test as g_test
    from treespec.testing.continuations import uncached as uncached
    from treespec.testing.drafter import SEVERAL_DRAFTERS as SEVERAL_DRAFTERS
    from treespec.testing.drafter import TOY_SCHEMES as TOY_SCHEMES
    from treespec.testing.drafter import ConditionalProbs as ConditionalProbs
    from treespec.testing.drafter import RandomDistributions as RandomDistributions
    from treespec.testing.drafter import ToyDrafter as ToyDrafter
    from treespec.testing.drafter import distribution_pairs as distribution_pairs
    from treespec.testing.drafter import toy_distribution as toy_distribution
    from treespec.testing.exact import Case as Case
    from treespec.testing.exact import EnumeratingSource as EnumeratingSource
    from treespec.testing.exact import ExactDistribution as ExactDistribution
    from treespec.testing.exact import VerifyingRule as VerifyingRule
    from treespec.testing.exact import assert_lossless as assert_lossless
    from treespec.testing.exact import assert_lossless_everywhere as assert_lossless_everywhere
    from treespec.testing.exact import enumerate_traces as enumerate_traces
    from treespec.testing.exact import exact_distribution as exact_distribution
    from treespec.testing.exact import supported_cases as supported_cases
    from treespec.testing.exact import toy_case as toy_case
    from treespec.testing.trees import SHAPES as SHAPES
    from treespec.testing.trees import AdaptiveDepth as AdaptiveDepth
    from treespec.testing.trees import AdaptiveWidth as AdaptiveWidth
    from treespec.testing.trees import Context as Context
    from treespec.testing.trees import FixedShape as FixedShape
    from treespec.testing.trees import Shape as Shape
    from treespec.testing.trees import ToyTree as ToyTree
    from treespec.tree import IID as IID
    from treespec.tree import MIXED as MIXED
    from treespec.tree import SELECTED as SELECTED
    from treespec.tree import WITHOUT_REPLACEMENT as WITHOUT_REPLACEMENT

__getattr__, __dir__, __all__ = lazy(__name__)
