"""SpecExec: trees grown from the best nodes of any depth."""

import numpy as np

from treespec.checks import ShowsOptions, check_count
from treespec.policies.best_first import MOST_NODES, add_best, best_nodes, is_among_best
from treespec.policies.children import choose_children
from treespec.policies.draw_values import DrawValues
from treespec.policies.growing import TreeBuilder
from treespec.protocols import DraftSource
from treespec.tree import SELECTED, TreeBatch


class SpecExec(ShowsOptions):
    """SpecExec (Svirschevski et al. 2024): draft passes over the best unexpanded nodes of any depth.

    A search for shortest paths that settles `beam` nodes at a time. Unlike a beam per level it returns to nodes that it
    passed over, so with enough passes it finds exactly the best paths; a long certain path may cost a pass per node.
    Children are selected.

    Args:
        num_nodes: the most nodes of a tree, root included.
        beam: the most nodes of a draft pass.
        num_passes: the most draft passes, and so the deepest level.

    Raises `ConfigError`: a number that is not a positive int.
    """

    def __init__(self, num_nodes: int, beam: int = 16, num_passes: int = 8) -> None:
        self.num_nodes = self.max_nodes = check_count("num_nodes", num_nodes, most=MOST_NODES)
        self.beam = check_count("beam", beam)
        self.num_passes = check_count("num_passes", num_passes)

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        builder = TreeBuilder(source)
        budget = self.max_nodes - 1
        nodes = builder.root
        ranks = np.full_like(builder.values, np.inf)
        is_open = np.zeros(nodes.shape, np.bool_)
        for _ in range(self.num_passes if budget else 0):
            proposal = builder.expand(nodes)
            width = min(budget, proposal.probs.shape[-1])
            chosen = choose_children(proposal, [width] * nodes.shape[1], SELECTED, source.generator)
            added, added_ranks = add_best(builder, nodes, chosen, DrawValues(chosen.probs, chosen.probs), ranks, budget)
            ranks = np.concatenate([ranks, added_ranks], 1)
            is_open = np.concatenate([is_open, np.ones(added.shape, np.bool_)], 1) & (builder.depths < max_depth)
            open_ranks = np.where(is_open & is_among_best(ranks, self.max_nodes), ranks, 0.0)
            columns = np.broadcast_to(np.arange(ranks.shape[1]), ranks.shape)
            nodes = best_nodes(columns, open_ranks, self.beam)
            # Padding closes the root, which is closed already.
            np.put_along_axis(is_open, np.maximum(nodes, 0), False, 1)
            if builder.is_exhausted(nodes):
                break
        return builder.build(is_among_best(ranks, self.max_nodes))
