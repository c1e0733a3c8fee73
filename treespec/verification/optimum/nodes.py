"""The optimal acceptance probability of one node, by how its siblings are drawn.

Distributions are float [..., V] (without replacement: [V]), selected tokens int64 [..., k], results float64 [...].
All raise ConfigError for shapes that differ, for rows that are not distributions, and for k < 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from treespec.checks import check_count, check_distributions
from treespec.errors import ConfigError
from treespec.verification.optimum.quadrature import all_inside

_MAX_SIBLINGS = 16


class Bounded(NamedTuple):
    """A value and a bound on its absolute error."""

    value: float
    error: float


def optimum_iid(target_probs: Tensor, draft_probs: Tensor, k: int) -> Tensor:
    """Optimal acceptance of k >= 1 siblings drawn i.i.d. from `draft_probs`: a scan with `Pr = q(H)^k`, O(V log V)."""
    target, draft = _sorted_by_ratio(target_probs, draft_probs, k)
    return 1 + (target.cumsum(-1) - draft.cumsum(-1) ** k).amin(-1).clamp(max=0)


def optimum_without_replacement(target_probs: Tensor, draft_probs: Tensor, k: int, tolerance: float = 1e-9) -> Bounded:
    """Optimal acceptance of k siblings drawn without replacement, the first one from `draft_probs`.

    The same prefix scan. Let every token ring at an exponential time of rate q: the first k to ring are the siblings,
    so `Pr(H) = integral of lam e^(-lam t) Pr(at least k rings in H by t) dt` with `lam = 1 - q(H)`. In closed form for
    k <= 2; otherwise by Gauss-Legendre quadrature on panels of doubling length, the same points for all prefixes, with
    a proven error bound: O(k V) per point, some 200 points.

    Where fewer than k tokens have any mass, the siblings are all of those. k is at most 16. `tolerance`, in [1e-12, 1),
    is the error bound to reach; rounding adds about 1e-12.
    """
    target, draft = _sorted_by_ratio(target_probs, draft_probs, k)
    if target.ndim != 1 or k > _MAX_SIBLINGS:
        raise ConfigError(
            f"expected distributions [V] and at most {_MAX_SIBLINGS} siblings, got {list(target.shape)} and k={k}"
        )
    if not 1e-12 <= tolerance < 1:
        raise ConfigError(f"tolerance must lie in [1e-12, 1), which float64 can keep, got {tolerance}")
    has_mass = draft > 0
    target, draft = target[has_mass], draft[has_mass]
    k = min(k, draft.shape[0])
    inside, error = all_inside(draft, k, tolerance)
    return Bounded(1 + min(0.0, float((target.cumsum(-1) - inside).min())), error)


def optimum_selected(target_probs: Tensor, tokens: Tensor) -> Tensor:
    """Optimal acceptance of selected siblings: `P(tokens)`, each token once, which the target walk attains."""
    check_distributions("target_probs", target_probs)
    is_child = torch.zeros_like(target_probs, dtype=torch.bool).scatter(-1, tokens, True)
    return (target_probs.double() * is_child).sum(-1)


def optimum_mixed(target_probs: Tensor, draft_probs: Tensor, selected: Tensor) -> Tensor:
    """Optimal acceptance of some selected siblings and one sampled from the rest: H holds all selected ones.

    `draft_probs`, of the sampled sibling, is zero on the selected tokens, and everywhere if they leave nothing to
    sample, which makes it `optimum_selected`.
    """
    _check_pair(target_probs, draft_probs, may_be_empty=True)
    target, draft = target_probs.double(), draft_probs.double()
    certain = optimum_selected(target, selected)
    target = target.scatter(-1, selected, 0.0)
    with_sample = 1 + (certain + (target - draft).clamp(max=0).sum(-1)).clamp(max=0)
    return torch.where((draft > 0).any(-1), with_sample, certain)


def _sorted_by_ratio(target_probs: Tensor, draft_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Both distributions float64 [..., V], tokens in order of P/q ascending; tokens without draft mass last."""
    _check_pair(target_probs, draft_probs)
    check_count("k", k)
    target, draft = target_probs.double(), draft_probs.double()
    ratio = torch.where(draft > 0, target / draft.clamp(min=1e-300), math.inf)
    order = ratio.argsort(-1)
    return target.gather(-1, order), draft.gather(-1, order)


def _check_pair(target_probs: Tensor, draft_probs: Tensor, may_be_empty: bool = False) -> None:
    check_distributions("target_probs", target_probs)
    check_distributions("draft_probs", draft_probs, may_be_empty)
    if target_probs.shape != draft_probs.shape:
        shapes = f"{list(target_probs.shape)} and {list(draft_probs.shape)}"
        raise ConfigError(f"target_probs and draft_probs must have one shape, got {shapes}")
