"""Published trees that are settings of treespec's policies. All raise ConfigError for numbers out of range.

The reranks of EAGLE-2 and OPT-Tree are exact for selected children only, so these have no option for sampled ones.
"""

from collections.abc import Sequence

from treespec.checks import AUTO, check_count
from treespec.policies.best_first import BestFirst
from treespec.policies.draw_values import VISIT
from treespec.policies.paths import KAry, check_branching
from treespec.tree import SELECTED, WITHOUT_REPLACEMENT


def eagle2(num_nodes: int = 60, beam: int = 10, depth: int = 6) -> BestFirst:
    """EAGLE-2's dynamic tree (Li et al. 2024): expand, then rerank.

    The `beam` most probable paths of every level get `beam` children each; in the end the `num_nodes - 1` most probable
    of all candidates are kept.
    """
    return BestFirst(num_nodes, SELECTED, beam=beam, depth=depth, branching=beam)


def opt_tree(num_nodes: int, min_gain: float = 0.0, depth: int = 10) -> BestFirst:
    """OPT-Tree (Wang et al. 2024): the `num_nodes - 1` most probable paths.

    Levels are added while the last one raised the sum of their probabilities by more than `min_gain`.
    """
    return BestFirst(num_nodes, SELECTED, depth=depth, min_gain=min_gain)


def dyspec(num_nodes: int, depth: int | None = None, beam: int | None = None) -> BestFirst:
    """DySpec's sampled dynamic tree (Xiong et al. 2024): the draws most likely to be reached, without replacement.

    Needs a drafter with distributions to sample from. `beam` bounds the nodes of a draft pass, see `BestFirst`.
    """
    return BestFirst(num_nodes, WITHOUT_REPLACEMENT, beam=beam, depth=depth, ranking=VISIT)


def delayed_branching(trunk: int, branching: Sequence[int], children: str = AUTO) -> KAry:
    """A chain of `trunk` tokens, then `branching[d]` children per node: for drafts that are certain at first."""
    return KAry((1,) * check_count("trunk", trunk) + check_branching(branching), children)
