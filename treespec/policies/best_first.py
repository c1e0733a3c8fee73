"""Best-first trees under a node budget, grown layer by layer.

Selected children: the most probable paths, as in OPT-Tree (Wang et al. 2024) and EAGLE-2's rerank, but exactly the
best `num_nodes - 1` of them. Sampled children: the heap of DySpec (Xiong et al. 2024), which holds *slots*, places for
the next draw below a node, ranked by how likely verification is to come to a slot and to accept what is drawn there
(see `treespec/policies/slots.py`).

Axis letters: B rows, F expanded nodes, k children, w nodes of a level, M nodes so far.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treespec.checks import AUTO, check_children, check_count, check_number
from treespec.errors import ConfigError
from treespec.policies.children import Children, choose_children, resolve_children
from treespec.policies.growing import TreeBuilder
from treespec.policies.slots import ACCEPTANCE, SlotValues, check_ranking, slot_values
from treespec.protocols import DraftSource
from treespec.tree import IID, PADDING_PARENT, SELECTED, WITHOUT_REPLACEMENT, TreeBatch

DENSE_DEPTH = 8


class BestFirst:
    """The `num_nodes - 1` best nodes below the root.

    Args:
        num_nodes: the most nodes of a tree, root included.
        children: "auto" (sampled without replacement where there is a distribution to sample from, else selected),
            "selected", "without_replacement" or "iid".
        beam: the most nodes expanded per level; None expands all that can have children among the best.
        depth: the deepest level; None stands for 8 with a draft model, which pays a pass per level, and for no limit
            with candidates.
        branching: the most children of a node; None: as many as are among the best.
        min_gain: a row goes on to another level only while the last one raised its expected accepted tokens, the sum
            of the best nodes' ranking values, by more; for selected children only.
        ranking: of sampled children, "acceptance" or "visit" (DySpec's own: how likely verification is to come to a
            slot, whatever becomes of the draw).

    Raises:
        ConfigError: a number that is not a positive int, a negative gain or one asked of children that are not said to
            be "selected", unknown children or an unknown ranking.

    Why trimming to the budget is lossless with sampled children: a node's place in the ranking is its *slot's* value,
    made of the parent's value, the distribution and the earlier siblings, which no draw in the slot or below it
    changes, cut down to the least on the way to it, so that it never rises towards a child or a next sibling. So the
    best slots (of equal ones the higher level's first) are those that a heap would have drawn from one by one, and the
    others count as never drawn. That is why `min_gain` takes no sampled children: whether there is another level would
    depend on what was drawn in this one, and the nodes below a better slot would push out a worse one, or not,
    according to the worse one's own draw.
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
    ) -> None:
        self.num_nodes = check_count("num_nodes", num_nodes)
        self.children = check_children(children, (AUTO, SELECTED, WITHOUT_REPLACEMENT, IID))
        self.beam = None if beam is None else check_count("beam", beam)
        self.depth = None if depth is None else check_count("depth", depth)
        self.branching = None if branching is None else check_count("branching", branching)
        self.min_gain = check_number("min_gain", min_gain, lambda gain: gain >= 0, "not be negative")
        if min_gain > 0 and children != SELECTED:
            raise ConfigError(
                f"min_gain needs children='selected', got {children!r}: stopping by drawn tokens is biased"
            )
        self.ranking = check_ranking(ranking)

    @property
    def max_nodes(self) -> int:
        return self.num_nodes

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """One tree per row, no deeper than `max_depth`; see `TreePolicy`."""
        builder = TreeBuilder(source)
        budget = self.num_nodes - 1
        children, ranks = self.children, torch.full_like(builder.values, torch.inf)
        nodes, depth, limit = builder.root, 0, min(budget, max_depth)
        while depth < limit:
            proposal = builder.expand(nodes)
            if depth == 0:
                children = resolve_children(children, proposal, source.is_sampling)
                is_dense = proposal.tokens is None
                limit = min(limit, self.depth or (DENSE_DEPTH if is_dense else limit))
            width = min(budget, self.branching or budget, proposal.probs.shape[-1])
            chosen = choose_children(proposal, [width] * nodes.shape[1], children, source.generator)
            values = slot_values(chosen, children, self.ranking)
            level, level_ranks = add_best(builder, nodes, chosen, values, ranks, budget)
            grown, depth = torch.cat([ranks, level_ranks], 1), depth + 1
            nodes = self._frontier(builder, level, level_ranks, grown)
            if self.min_gain > 0:
                is_gaining = _best_sum(grown, budget) - _best_sum(ranks, budget) > self.min_gain
                nodes = torch.where(is_gaining, nodes, PADDING_PARENT)
            ranks = grown
            if builder.is_exhausted(nodes):
                break
        keep = is_among_best(ranks, self.num_nodes)
        return builder.build(keep, self.num_nodes, is_width_fixed=children == SELECTED)

    def _frontier(self, builder: TreeBuilder, level: Tensor, level_ranks: Tensor, ranks: Tensor) -> Tensor:
        """Those of `level` int64 [B, w] to be expanded, best first, then padding: int64 [B, F].

        A node's children rank at most as high as its slot and its own value, and behind earlier levels in a tie.
        """
        values = torch.minimum(builder.take(builder.values, level), level_ranks)
        if ranks.shape[1] >= self.num_nodes:
            worst = ranks.topk(self.num_nodes, dim=1).values[:, -1:]
            values = torch.where(values > worst, values, 0.0)
        order = values.sort(dim=1, descending=True, stable=True)
        width = min(self.beam or level.shape[1], level.shape[1])
        if builder.is_on_host:
            width = min(width, max(int((order.values > 0).sum(1).max()), 1))
        best = level.gather(1, order.indices[:, :width])
        return torch.where(order.values[:, :width] > 0, best, PADDING_PARENT)


def add_best(
    builder: TreeBuilder, nodes: Tensor, chosen: Children, values: SlotValues, ranks: Tensor, budget: int
) -> tuple[Tensor, Tensor]:
    """Add the best `budget` of the F * k children: their ids int64 [B, w] and ranking values float [B, w].

    `ranks` float [B, M] are the ranking values so far. A slot ranks no higher than what has to be drawn before it, its
    parent and its earlier siblings.
    """
    above, ceiling = (
        torch.where(nodes >= 0, builder.take(of, nodes), 0.0).unsqueeze(-1) for of in (builder.values, ranks)
    )
    slots = torch.minimum((above * values.slots).to(ranks.dtype), ceiling).cummin(-1).values
    level = torch.where(chosen.is_real, slots, 0.0).flatten(1)
    best = level.sort(dim=1, descending=True, stable=True)
    columns, best_ranks = best.indices[:, :budget], best.values[:, :budget]
    ids = builder.add(nodes, chosen._replace(is_real=chosen.is_real & (slots > 0)), above * values.nodes, columns)
    return ids, best_ranks


def _best_sum(ranks: Tensor, budget: int) -> Tensor:
    """The sum of the `budget` highest ranking values [B, M] below the root: float [B, 1]."""
    below = ranks[:, 1:]
    return below.topk(min(budget, below.shape[1]), dim=1).values.sum(1, keepdim=True)


def is_among_best(ranks: Tensor, num_nodes: int) -> Tensor:
    """bool [B, M]: the `num_nodes` highest values above zero; of equal ones the first, so parents before children."""
    order = ranks.sort(dim=1, descending=True, stable=True).indices[:, :num_nodes]
    return torch.zeros_like(ranks, dtype=torch.bool).scatter(1, order, True) & (ranks > 0)
