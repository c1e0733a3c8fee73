"""Best-first trees under a node budget, grown level by level.

Selected children: the most probable paths, as in OPT-Tree (Wang et al. 2024) and EAGLE-2's rerank, but exactly the
best `num_nodes - 1` of them. Sampled children: the heap of DySpec (Xiong et al. 2024), which holds the next *draw*
below every node, ranked by how likely verification is to reach it and to accept its token (see
`treespec/policies/draw_values.py`).
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.checks import AUTO, ShowsOptions, check_children, check_count, check_number
from treespec.errors import ConfigError
from treespec.policies.children import Children, choose_children, resolve_children
from treespec.policies.draw_values import ACCEPTANCE, VISIT, DrawValues, draw_values
from treespec.policies.growing import TreeBuilder
from treespec.protocols import DraftSource
from treespec.tree import IID, PADDING_PARENT, SELECTED, WITHOUT_REPLACEMENT, TreeBatch

LEAST_VALUE, FEW_NODES = 2.2, 6
"""See `tree_of`; with the shipped head trees of 16 are drafted in two thirds of the time at T = 1, accepted as much."""

MOST_NODES = 2**13
"""The mask of a pass has a number for every two nodes: 256 MiB in float32."""

DENSE_DEPTH = 8
"""The deepest level by default where a level costs a draft pass."""


class BestFirst(ShowsOptions):
    """The best nodes below the root, at most `num_nodes - 1`.

    Args:
        num_nodes: the most nodes of a tree, root included.
        children: see `Paths`; not "mixed".
        beam: the most nodes expanded per level; None expands all that can have children among the best.
        depth: the deepest level; None stands for 8 with a draft model, which pays a pass per level, and for no limit
            with candidates.
        branching: the most children of a node; None: as many as are among the best.
        min_gain: a row continues to another level only while the last one raised its expected accepted tokens, the sum
            of the best nodes' ranking values, by more; for selected children only.
        min_value: a node is expanded only if its value, the estimate that its whole path is accepted, is above this,
            which saves passes that hardly gain. A heap over candidates, which no pass has to be made for, ignores it.
        ranking: of sampled children, "acceptance" or "visit" (DySpec's own: how likely verification is to reach a
            draw, accepted or not).

    Raises `ConfigError`: numbers out of range, a gain without children="selected", unknown children or ranking.

    Why trimming to the budget is lossless with sampled children: a node is ranked by the value of its *draw*, made of
    the parent's value, the distribution and the earlier siblings, which neither its own token nor the nodes below it
    change; the value is capped by the least one on the way to it, so that it never rises towards a child or a next
    sibling. So the best draws (of equal ones the higher level's first) are those that a heap would have made one by
    one, and the others count as never made. `min_value` compares a node with a number and not with others,
    so that it decides only about the draws below the node. `min_gain` takes no sampled children: whether a draw has a
    rival among the next level's would depend on the token that it drew.
    """

    def __init__(
        self,
        num_nodes: int,
        children: str = AUTO,
        beam: int | None = None,
        depth: int | None = None,
        branching: int | None = None,
        min_gain: float = 0.0,
        ranking: str = ACCEPTANCE,
        min_value: float = 0.0,
    ) -> None:
        self.num_nodes = self.max_nodes = check_count("num_nodes", num_nodes, most=MOST_NODES)
        self.children = check_children(children, (AUTO, SELECTED, WITHOUT_REPLACEMENT, IID))
        self.beam = None if beam is None else check_count("beam", beam)
        self.depth = None if depth is None else check_count("depth", depth)
        self.branching = None if branching is None else check_count("branching", branching)
        self.min_gain = check_number("min_gain", min_gain, lambda gain: gain >= 0, "not be negative")
        if min_gain > 0 and children != SELECTED:
            raise ConfigError(f"min_gain needs children='selected', got {children!r}: drawn tokens may not end a tree")
        if ranking not in (ACCEPTANCE, VISIT):
            raise ConfigError(f"ranking must be {ACCEPTANCE!r} or {VISIT!r}, got {ranking!r}")
        self.ranking = ranking
        self.min_value = check_number("min_value", min_value, lambda x: 0 <= x < 1, "be at least 0 and below 1")

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        builder = TreeBuilder(source)
        budget = self.num_nodes - 1
        children = self.children
        ranks = np.full_like(builder.values, np.inf)
        nodes = builder.root
        depth = 0
        limit = min(budget, max_depth)
        while depth < limit:
            proposal = builder.expand(nodes)
            if depth == 0:
                children = resolve_children(children, proposal, source.is_sampling)
                is_dense = proposal.tokens is None
                limit = min(limit, self.depth or (DENSE_DEPTH if is_dense else limit))
            width = min(budget, self.branching or budget, proposal.probs.shape[-1])
            has_squares = self.ranking == ACCEPTANCE
            chosen = choose_children(proposal, [width] * nodes.shape[1], children, source.generator, has_squares)
            values = draw_values(chosen, children, self.ranking)
            level, level_ranks = add_best(builder, nodes, chosen, values, ranks, budget)
            grown = np.concatenate([ranks, level_ranks], 1)
            depth += 1
            nodes = self._frontier(builder, level, level_ranks, grown)
            if self.min_gain > 0:
                is_gaining = _best_sum(grown, budget) - _best_sum(ranks, budget) > self.min_gain
                nodes = np.where(is_gaining, nodes, PADDING_PARENT)
            ranks = grown
            if builder.is_exhausted(nodes):
                break
        return builder.build(is_among_best(ranks, self.num_nodes), is_width_fixed=children == SELECTED)

    def _frontier(
        self,
        builder: TreeBuilder,
        level: Int[np.ndarray, "B w"],
        level_ranks: Float[np.ndarray, "B w"],
        ranks: Float[np.ndarray, "B M"],
    ) -> Int[np.ndarray, "B F"]:
        """The columns of `level` that are to be expanded, best first, then padding.

        A node's children rank at most as high as its draw and its own value, and after earlier levels in a tie.
        """
        values = builder.take(builder.values, level)
        values = np.where(values > self.min_value, np.minimum(values, level_ranks), 0.0)
        if ranks.shape[1] >= self.num_nodes:
            worst = np.partition(ranks, -self.num_nodes, axis=1)[:, -self.num_nodes, None]
            values = np.where(values > worst, values, 0.0)
        return best_nodes(level, values, self.beam or level.shape[1])


def tree_of(num_nodes: int, depth: int | None = None) -> BestFirst:
    """The policy of `tree=num_nodes`: nodes of a value of at most `LEAST_VALUE / num_nodes` are leaves.

    The larger the tree, the more nodes share the pass of a level, and the less each of them has to bring. A draft that
    costs little, or claims little and is right, gains from `BestFirst(num_nodes)`, whose trees are deeper.
    """
    return BestFirst(num_nodes, depth=depth, min_value=LEAST_VALUE / max(num_nodes, FEW_NODES))


def best_nodes(
    nodes: Int[np.ndarray, "B w"], values: Float[np.ndarray, "B w"], num_best: int
) -> Int[np.ndarray, "B F"]:
    """The nodes of the `num_best` highest values above zero, best first, then padding."""
    width = min(num_best, max(int((values > 0).sum(1).max()), 1))
    order = falling(values)[:, :width]
    rows = np.arange(len(nodes))[:, None]  # NumPy's `take_along_axis` costs three times as much.
    return np.where(values[rows, order] > 0, nodes[rows, order], PADDING_PARENT)


def falling(values: Float[np.ndarray, "B w"]) -> Int[np.ndarray, "B w"]:
    """Indices that sort values in descending order; equal ones keep their order."""
    return np.argsort(-values, axis=1, kind="stable")


def add_best(
    builder: TreeBuilder,
    nodes: Int[np.ndarray, "B F"],
    chosen: Children,
    values: DrawValues,
    ranks: Float[np.ndarray, "B M"],
    budget: int,
) -> tuple[Int[np.ndarray, "B w"], Float[np.ndarray, "B w"]]:
    """Add the best `budget` of the F * k children; returns their columns and their ranking values.

    `ranks` are the ranking values of the nodes so far. A draw ranks no higher than what has to be drawn before it: its
    parent and its earlier siblings.
    """
    above, ceiling = (np.where(nodes >= 0, builder.take(of, nodes), 0.0)[..., None] for of in (builder.values, ranks))
    draws = np.minimum.accumulate(np.minimum((above * values.draws).astype(ranks.dtype), ceiling), -1)
    level = np.where(chosen.is_real, draws, 0.0).reshape(len(nodes), -1)
    columns = falling(level)[:, :budget]
    ids = builder.add(nodes, chosen._replace(is_real=chosen.is_real & (draws > 0)), above * values.nodes, columns)
    return ids, builder.take(level, columns)


def _best_sum(ranks: Float[np.ndarray, "B M"], budget: int) -> Float[np.ndarray, "B 1"]:
    """The sum of the `budget` highest ranking values below the root."""
    return -np.sort(-ranks[:, 1:], axis=1)[:, :budget].sum(1, keepdims=True)


def is_among_best(ranks: Float[np.ndarray, "B M"], num_nodes: int) -> Bool[np.ndarray, "B M"]:
    """The `num_nodes` highest values above zero; of equal ones the first, so parents before children."""
    is_best = np.zeros(ranks.shape, np.bool_)
    np.put_along_axis(is_best, falling(ranks)[:, :num_nodes], True, 1)
    return is_best & (ranks > 0)
