"""What the next draw below a node is worth, and the child that was drawn.

A draw is never valued by its own outcome: then leaving out the least valuable draws takes nothing from the distribution
of the others. The child's own value may depend on its draw, for it decides only about the draws below it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.policies.children import Children
from treespec.tree import IID, SELECTED

ACCEPTANCE, VISIT = "acceptance", "visit"

SAMPLING_GAIN = 0.4
"""How often a sampled child is accepted though its distribution gave it next to nothing, see `acceptance_values`."""


class DrawValues(NamedTuple):
    """`draws` and `nodes`, float [B, F, k]: values of k draws and of the children drawn, their parent's being 1.

    The parent's value times `nodes` is the estimate that a child's whole path is accepted.
    """

    draws: Tensor
    nodes: Tensor


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

        a_r(q) = c_r + (1 - c_r) q,     c_r = SAMPLING_GAIN^(r + 1),     r = 0, 1, ...

    a selected token's q and what sampling adds to it. A draw is reached with probability prod (1 - a_i) over the
    siblings before it; before the draw, its expected acceptance is c_r + (1 - c_r) sum q^2.
    """
    probs = chosen.probs
    assert chosen.draft_probs is not None
    rest, squares = torch.ones_like(probs), chosen.draft_probs.square().sum(-1, keepdim=True)
    if not is_iid:
        rest = (rest - _before(probs)).clamp(min=torch.finfo(probs.dtype).tiny)
        squares = (squares - _before(probs.square())).clamp(min=0)
    gains = SAMPLING_GAIN ** torch.arange(1, probs.shape[-1] + 1, device=probs.device, dtype=probs.dtype)
    accepted = gains + (1 - gains) * (probs / rest).clamp(max=1)
    expected = gains + (1 - gains) * (squares / rest / rest).clamp(max=1)
    missed = 1 - accepted
    reached = torch.cat([torch.ones_like(missed[..., :1]), missed.cumprod(-1)[..., :-1]], -1)
    return DrawValues(reached * expected, reached * accepted)


def visit_values(probs: Float[Tensor, "B F k"], is_iid: bool) -> DrawValues:
    """As in DySpec (Xiong et al. 2024): how likely verification is to reach a draw, if the target were the draft."""
    missed = (1 - probs).cumprod(-1) if is_iid else (1 - probs.cumsum(-1)).clamp(min=0)
    draws = torch.cat([torch.ones_like(missed[..., :1]), missed[..., :-1]], -1).cummin(-1).values
    return DrawValues(draws, torch.minimum(draws * probs if is_iid else probs, draws))


def _before(values: Float[Tensor, "B F k"]) -> Float[Tensor, "B F k"]:
    """Sums over the siblings before each one, without its own value."""
    return torch.nn.functional.pad(values.cumsum(-1)[..., :-1], (1, 0))
