"""The value of the next draw below a node, and of the child once it was drawn.

A draw is never valued by its own outcome: then leaving out the least valuable draws takes nothing from the distribution
of the others. The child's own value may depend on its draw, for it decides only about the draws below it.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from treespec.policies.children import Children
from treespec.tree import IID, SELECTED

ACCEPTANCE, VISIT = "acceptance", "visit"

FIRST_ACCEPTED, LATER_ACCEPTED, CERTAINTY = 0.36, 0.13, 1.2
"""See `acceptance_values`; fitted to 14,505 nodes of trees that the shipped head drew at T = 1. Merged with warm
lookups, trees of 8 accept 1.71 tokens with them at T = 0.6, 1.60 with c + (1 - c) q, c = 0.4^(r + 1), which hoped for
too much of later siblings."""


class DrawValues(NamedTuple):
    """`draws` and `nodes`: values of k draws and of the children drawn, their parent's being 1.

    The parent's value times `nodes` is the estimate that a child's whole path is accepted.
    """

    draws: Float[np.ndarray, "B F k"]
    nodes: Float[np.ndarray, "B F k"]


def draw_values(chosen: Children, children: str, ranking: str) -> DrawValues:
    """Values of the draws below F nodes, in verification order; `children` is a way of choosing, not "auto"."""
    if children == SELECTED:
        return DrawValues(chosen.probs, chosen.probs)
    is_iid = children == IID
    return acceptance_values(chosen, is_iid) if ranking == ACCEPTANCE else visit_values(chosen.probs, is_iid)


def acceptance_values(chosen: Children, is_iid: bool) -> DrawValues:
    """How likely verification is to reach a draw and to accept its token.

    A token of probability q under the distribution it is drawn from is accepted with probability min(1, P/q) by
    recursive rejection, P being what earlier rejections left of the target. Without P, the estimate for the r-th
    sibling is

        a_r(q) = b_r (1 + CERTAINTY q),     b_0 = FIRST_ACCEPTED,     b_r = LATER_ACCEPTED / r,     r = 1, 2, ...

    After a rejection what is left of the target has little to do with what is left of the draft's distribution. A draw
    is reached with probability prod (1 - a_i) over the siblings before it; before the draw, its expected acceptance is
    b_r (1 + CERTAINTY sum q^2).
    """
    probs, squares = chosen.probs, chosen.squares
    assert squares is not None
    rest = np.ones_like(probs)
    if not is_iid:  # The least that is left of a distribution, by rounding, has a square above zero.
        rest = np.maximum(1 - _shifted(probs.cumsum(-1), 0), np.finfo(probs.dtype).tiny ** 0.5)
        squares = np.maximum(squares - _shifted(np.square(probs).cumsum(-1), 0), 0)
    least = np.array([FIRST_ACCEPTED, *LATER_ACCEPTED / np.arange(1, probs.shape[-1])], probs.dtype)
    accepted = least * (1 + CERTAINTY * (probs / np.maximum(rest, probs)))
    expected = least * (1 + CERTAINTY * (squares / np.maximum(rest * rest, squares)))
    reached = _shifted((1 - accepted).cumprod(-1), 1)
    return DrawValues(reached * expected, reached * accepted)


def visit_values(probs: Float[np.ndarray, "B F k"], is_iid: bool) -> DrawValues:
    """As in DySpec (Xiong et al. 2024): how likely verification is to reach a draw, if the target were the draft."""
    missed = (1 - probs).cumprod(-1) if is_iid else np.maximum(1 - probs.cumsum(-1), 0)
    draws = np.minimum.accumulate(_shifted(missed, 1), -1)
    return DrawValues(draws, np.minimum(draws * probs if is_iid else probs, draws))


def _shifted(values: Float[np.ndarray, "B F k"], first: float) -> Float[np.ndarray, "B F k"]:
    """The values of the sibling before each one, `first` for the first."""
    return np.concatenate([np.full_like(values[..., :1], first), values[..., :-1]], -1)
