"""What a *slot*, the place for a node's next child, is worth, and the child that was drawn into it.

A slot may be valued by the distribution, by what was drawn into earlier slots and by the past, but never by its own
draw: then leaving out the least valuable slots takes nothing from the distribution of the others. The child's own value
may depend on the draw, for it decides about the slots below it only.

Axis letters: B rows, F expanded nodes, V vocabulary, k children.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from treespec.errors import ConfigError
from treespec.policies.children import Children
from treespec.tree import IID, SELECTED

ACCEPTANCE, VISIT = "acceptance", "visit"

SAMPLING_GAIN = 0.4
"""How often a sampled child is accepted though its distribution gave it next to nothing, see `accepted_slots`."""


class SlotValues(NamedTuple):
    """`slots` and `nodes`, float [B, F, k]: values of the k slots and of the children in them, their parent's being 1.

    The parent's value times `nodes` is the estimate that a child's whole path is accepted.
    """

    slots: Tensor
    nodes: Tensor


def check_ranking(ranking: str) -> str:
    """Raises: ConfigError, unless `ranking` is one of `ACCEPTANCE` and `VISIT`."""
    if ranking not in (ACCEPTANCE, VISIT):
        raise ConfigError(f"ranking must be {ACCEPTANCE!r} or {VISIT!r}, got {ranking!r}")
    return ranking


def slot_values(chosen: Children, children: str, ranking: str) -> SlotValues:
    """Values of the slots of F nodes, in verification order; `children` is a way of choosing but "auto"."""
    if children == SELECTED:
        return SlotValues(chosen.probs, chosen.probs)
    is_iid = children == IID
    return accepted_slots(chosen, is_iid) if ranking == ACCEPTANCE else visited_slots(chosen.probs, is_iid)


def accepted_slots(chosen: Children, is_iid: bool) -> SlotValues:
    """By acceptance: how likely verification is to come to a slot and to accept what is drawn there.

    A token of probability q under the distribution it is drawn from is accepted with probability min(1, P/q) by
    recursive rejection, P being what earlier rejections left of the target. Without P, the estimate for the r-th
    sibling is

        a_r(q) = c_r + (1 - c_r) q,     c_r = SAMPLING_GAIN^(r + 1),     r = 0, 1, ...

    a selected token's q and what sampling adds to it. A slot is come to with probability prod (1 - a_i) over the
    siblings before it, and until its draw its acceptance is the mean of a_r, c_r + (1 - c_r) sum q^2.
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
    come_to = torch.cat([torch.ones_like(missed[..., :1]), missed.cumprod(-1)[..., :-1]], -1)
    return SlotValues(come_to * expected, come_to * accepted)


def visited_slots(probs: Tensor, is_iid: bool) -> SlotValues:
    """As in DySpec (Xiong et al. 2024): how likely verification is to come to a slot, the draft taken for the target.

    Args:
        probs: float [B, F, k], the draft's probabilities of the siblings in drawing order.
    """
    missed = (1 - probs).cumprod(-1) if is_iid else (1 - probs.cumsum(-1)).clamp(min=0)
    slots = torch.cat([torch.ones_like(missed[..., :1]), missed[..., :-1]], -1).cummin(-1).values
    return SlotValues(slots, torch.minimum(slots * probs if is_iid else probs, slots))


def _before(values: Tensor) -> Tensor:
    """Sums over the siblings before each one, whose own value does not enter: float [B, F, k]."""
    return torch.nn.functional.pad(values.cumsum(-1)[..., :-1], (1, 0))
