"""Stochastic beam search: the sampled tree of RSD-S (Jeon et al. 2024, after Kool et al. 2019).

A Gumbel G of a path's log-probability is kept as the arrival time exp(-G) of a clock whose rate is the path's
probability. The paper's truncation, by which the best child inherits its parent's Gumbel,

    -log(exp(-G_parent) - exp(-Z) + exp(-G)),   Z = max G over the siblings,

then reads `parent's time + time - first sibling's time`: the children's clocks start when the first of them rings.
"""

import numpy as np
import torch
from jaxtyping import Float

from treespec.checks import AUTO, ShowsOptions, check_children, check_count
from treespec.policies.children import Children, choose_children, on_host, resolve_children
from treespec.policies.growing import TreeBuilder
from treespec.protocols import DraftSource, Proposal
from treespec.sampling import race
from treespec.tree import PADDING_PARENT, SELECTED, WITHOUT_REPLACEMENT, TreeBatch


class StochasticBeam(ShowsOptions):
    """`width` nodes on each of `depth` levels: sampled by stochastic beam search, or the most probable when selected.

    `children` is "auto", "selected" or "without_replacement", see `Paths`.

    Raises `ConfigError`: a number that is not a positive int, or unknown children.

    Why the cut to `width` is lossless though it deletes drawn paths: siblings arrive in the order in which they are
    drawn, and when one arrives says nothing about which token it is, given those before it. So every node of the tree
    has the distribution that is stored with it, and later siblings count as never drawn.
    """

    def __init__(self, width: int, depth: int, children: str = AUTO) -> None:
        self.width = check_count("width", width)
        self.depth = check_count("depth", depth)
        self.max_nodes = 1 + width * depth
        self._children = check_children(children, (AUTO, SELECTED, WITHOUT_REPLACEMENT))

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        builder = TreeBuilder(source)
        nodes = builder.root
        times = np.zeros(builder.root.shape)
        children = self._children
        for _ in range(min(self.depth, max_depth)):
            proposal = builder.expand(nodes)
            children = resolve_children(children, proposal, source.is_sampling)
            above = np.where(nodes >= 0, builder.take(builder.values, nodes), 0.0)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # Children of rate zero never arrive.
                if children == SELECTED:
                    chosen = choose_children(proposal, [self.width] * nodes.shape[1], children, source.generator)
                    arrivals = 1 / (above[..., None] * chosen.probs)
                else:
                    chosen, arrivals = draw_children(proposal, self.width, times, above, source.generator)
            is_real = chosen.is_real & (nodes >= 0)[..., None]
            arrivals = np.where(is_real, arrivals, np.inf).reshape(len(nodes), -1)
            columns = np.argsort(arrivals, axis=1, kind="stable")[:, : self.width]
            times = np.take_along_axis(arrivals, columns, 1)
            chosen = chosen._replace(is_real=(arrivals < np.inf).reshape(is_real.shape))
            ids = builder.add(nodes, chosen, above[..., None] * chosen.probs, columns)
            nodes = np.where(times < np.inf, ids, PADDING_PARENT)
            if builder.is_exhausted(nodes):
                break
        return builder.build(is_width_fixed=children == SELECTED)


def draw_children(
    proposal: Proposal,
    width: int,
    times: Float[np.ndarray, "B F"],
    path_probs: Float[np.ndarray, "B F"],
    generator: torch.Generator,
) -> tuple[Children, Float[np.ndarray, "B F k"]]:
    """The first `width` children of every node to arrive, and when they do, rising along k.

    `times` says when the nodes arrived, `path_probs` how probable the paths to them are.
    """
    drawn, drawn_speeds = race(proposal.probs, width, generator)
    tokens, speeds, probs = on_host(drawn, drawn_speeds, proposal.probs.gather(-1, drawn))
    clocks = 1 / (speeds * path_probs[..., None])
    arrivals = times[..., None] + (clocks - clocks[..., :1])
    chosen = Children(tokens, probs, arrivals < np.inf, proposal.probs, tokens.shape[-1], is_without_replacement=True)
    return chosen, arrivals
