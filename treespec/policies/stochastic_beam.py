"""Stochastic beam search: the sampled tree of RSD-S (Jeon et al. 2024, after Kool et al. 2019).

A Gumbel G of a path's log-probability is kept as the arrival time exp(-G) of a clock whose rate is the path's
probability. The paper's truncation, by which the best child inherits its parent's Gumbel,

    -log(exp(-G_parent) - exp(-Z) + exp(-G)),   Z = max G over the siblings,

then reads `parent's time + time - first sibling's time`: the children's clocks start when the first of them rings.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.checks import AUTO, check_children, check_count
from treespec.policies.children import Children, choose_children, resolve_children
from treespec.policies.growing import TreeBuilder
from treespec.protocols import DraftSource, Proposal
from treespec.sampling import race
from treespec.tree import PADDING_PARENT, SELECTED, WITHOUT_REPLACEMENT, TreeBatch


class StochasticBeam:
    """`width` nodes on each of `depth` levels: sampled by stochastic beam search, or the most probable when selected.

    `children` is "auto", "selected" or "without_replacement", see `Paths`.

    Raises ConfigError: a number that is not a positive int, or unknown children.

    Why the cut to `width` is lossless though it deletes drawn paths: siblings arrive in the order in which they are
    drawn, and when one arrives says nothing about which token it is, given those before it. So every node of the tree
    has the distribution that is stored with it, and later siblings count as never drawn.
    """

    def __init__(self, width: int, depth: int, children: str = AUTO) -> None:
        self.width, self.depth = check_count("width", width), check_count("depth", depth)
        self.max_nodes = 1 + width * depth
        self._children = check_children(children, (AUTO, SELECTED, WITHOUT_REPLACEMENT))

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        builder = TreeBuilder(source)
        nodes, times = builder.root, torch.zeros_like(builder.root, dtype=torch.float64)
        children = self._children
        for _ in range(min(self.depth, max_depth)):
            proposal = builder.expand(nodes)
            children = resolve_children(children, proposal, source.is_sampling)
            above = torch.where(nodes >= 0, builder.take(builder.values, nodes), 0.0)
            if children == SELECTED:
                chosen = choose_children(proposal, [self.width] * nodes.shape[1], children, source.generator)
                arrivals = 1 / (above.unsqueeze(-1) * chosen.probs)
            else:
                chosen, arrivals = draw_children(proposal, self.width, times, above, source.generator)
            arrivals = torch.where(chosen.is_real & (nodes >= 0).unsqueeze(-1), arrivals, torch.inf).flatten(1)
            first = arrivals.sort(dim=1, stable=True)
            times, columns = first.values[:, : self.width], first.indices[:, : self.width]
            chosen = chosen._replace(is_real=(arrivals < torch.inf).view_as(chosen.is_real))
            ids = builder.add(nodes, chosen, above.unsqueeze(-1) * chosen.probs, columns)
            nodes = torch.where(times < torch.inf, ids, PADDING_PARENT)
            if builder.is_exhausted(nodes):
                break
        return builder.build(max_nodes=self.max_nodes, is_width_fixed=children == SELECTED)


def draw_children(
    proposal: Proposal,
    width: int,
    times: Float[Tensor, "B F"],
    path_probs: Float[Tensor, "B F"],
    generator: torch.Generator,
) -> tuple[Children, Float[Tensor, "B F k"]]:
    """The first `width` children of every node to arrive, and when they do (float64, rising along k).

    `times` says when the nodes arrived, `path_probs` how probable the paths to them are.
    """
    tokens, speeds = race(proposal.probs, width, generator)
    clocks = 1 / (speeds * path_probs.unsqueeze(-1))
    arrivals = times.unsqueeze(-1) + (clocks - clocks[..., :1])
    probs = proposal.probs.gather(-1, tokens)
    is_drawn = arrivals < torch.inf
    return Children(tokens, probs, is_drawn, proposal.probs, tokens.shape[-1], is_without_replacement=True), arrivals
