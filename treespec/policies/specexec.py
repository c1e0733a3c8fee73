"""Parallel search for the most probable paths (SpecExec, Svirschevski et al. 2024).

Axis letters: B rows, F expanded nodes, M nodes so far.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import check_count
from treespec.policies.best_first import add_best, is_among_best
from treespec.policies.children import choose_children
from treespec.policies.draw_values import DrawValues
from treespec.policies.growing import TreeBuilder
from treespec.protocols import DraftSource
from treespec.tree import PADDING_PARENT, SELECTED, TreeBatch


class SpecExec:
    """The `num_nodes - 1` most probable paths, found by draft passes over the best unexpanded nodes of any depth.

    A search for shortest paths that settles `beam` nodes at a time. Unlike a beam per level it returns to nodes that it
    passed over, so with enough passes it finds exactly the best paths; a long certain path may cost a pass per node.
    Children are selected.

    Args:
        num_nodes: the most nodes of a tree, root included.
        beam: the most nodes of a draft pass.
        num_passes: the most draft passes, and so the deepest level.

    Raises:
        ConfigError: a number that is not a positive int.
    """

    def __init__(self, num_nodes: int, beam: int = 16, num_passes: int = 8) -> None:
        self.num_nodes = check_count("num_nodes", num_nodes)
        self.beam = check_count("beam", beam)
        self.num_passes = check_count("num_passes", num_passes)

    @property
    def max_nodes(self) -> int:
        return self.num_nodes

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """One tree per row, no deeper than `max_depth`; see `TreePolicy`."""
        builder = TreeBuilder(source)
        budget, nodes = self.num_nodes - 1, builder.root
        ranks = torch.full_like(builder.values, torch.inf)
        is_open = torch.zeros_like(nodes, dtype=torch.bool)
        for _ in range(self.num_passes if budget else 0):
            proposal = builder.expand(nodes)
            width = min(budget, proposal.probs.shape[-1])
            chosen = choose_children(proposal, [width] * nodes.shape[1], SELECTED, source.generator)
            added, added_ranks = add_best(builder, nodes, chosen, DrawValues(chosen.probs, chosen.probs), ranks, budget)
            ranks = torch.cat([ranks, added_ranks], 1)
            is_open = torch.cat([is_open, torch.ones_like(added, dtype=torch.bool)], 1) & (builder.depths < max_depth)
            nodes = self._next(builder, torch.where(is_open & is_among_best(ranks, self.num_nodes), ranks, 0.0))
            # Padding closes the root, which is closed already.
            is_open = is_open.scatter(1, nodes.clamp(min=0), False)
            if builder.is_exhausted(nodes):
                break
        return builder.build(is_among_best(ranks, self.num_nodes), self.num_nodes)

    def _next(self, builder: TreeBuilder, ranks: Float[Tensor, "B M"]) -> Int[Tensor, "B F"]:
        """The nodes of the next pass: those of the highest `ranks` above zero, then padding."""
        best = ranks.sort(dim=1, descending=True, stable=True)
        width = min(self.beam, ranks.shape[1])
        if builder.is_on_host:
            width = min(width, max(int((best.values > 0).sum(1).max()), 1))
        return torch.where(best.values[:, :width] > 0, best.indices[:, :width], PADDING_PARENT)
