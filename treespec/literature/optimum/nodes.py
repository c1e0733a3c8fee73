"""The optimal acceptance probability of one node, by how its siblings are drawn.

Results are float64. All raise ConfigError for shapes that differ, for rows that are not distributions, and for k < 1.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import check_count, check_distributions, check_number
from treespec.errors import ConfigError

_MAX_SIBLINGS = 16
_POINTS, _PANEL_ERROR = 14, 8e-14
"""Gauss-Legendre points per panel of `_race`, and a bound on the error over all panels with up to 16 siblings."""
_HEAVY = 40.0  # A clock of rate q rings before t = 40 / q but for a probability of e^-40 < 5e-18.


class Bounded(NamedTuple):
    """A value and a bound on its absolute error."""

    value: float
    error: float


def optimum_iid(
    target_probs: Float[Tensor, "*rows V"], draft_probs: Float[Tensor, "*rows V"], k: int
) -> Float[Tensor, "*rows"]:
    """Optimal acceptance of k >= 1 siblings drawn i.i.d. from `draft_probs`: a scan with `Pr = q(H)^k`, O(V log V)."""
    target, draft = _sorted_by_ratio(target_probs, draft_probs, k)
    return 1 + (target.cumsum(-1) - draft.cumsum(-1) ** k).amin(-1).clamp(max=0)


def optimum_without_replacement(
    target_probs: Float[Tensor, " V"], draft_probs: Float[Tensor, " V"], k: int, tolerance: float = 1e-9
) -> Bounded:
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
    check_number("tolerance", tolerance, lambda bound: 1e-12 <= bound < 1, "lie in [1e-12, 1), which float64 can keep")
    has_mass = draft > 0
    target, draft = target[has_mass], draft[has_mass]
    k = min(k, draft.shape[0])
    inside, error = _all_inside(draft, k, tolerance)
    return Bounded(1 + min(0.0, float((target.cumsum(-1) - inside).min())), error)


def optimum_selected(target_probs: Float[Tensor, "*rows V"], tokens: Int[Tensor, "*rows k"]) -> Float[Tensor, "*rows"]:
    """Optimal acceptance of selected siblings: `P(tokens)`, each token once, which the target walk attains."""
    check_distributions("target_probs", target_probs)
    is_child = torch.zeros_like(target_probs, dtype=torch.bool).scatter(-1, tokens, True)
    return (target_probs.double() * is_child).sum(-1)


def optimum_mixed(
    target_probs: Float[Tensor, "*rows V"], draft_probs: Float[Tensor, "*rows V"], selected: Int[Tensor, "*rows k"]
) -> Float[Tensor, "*rows"]:
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


def _sorted_by_ratio(
    target_probs: Float[Tensor, "*rows V"], draft_probs: Float[Tensor, "*rows V"], k: int
) -> tuple[Float[Tensor, "*rows V"], Float[Tensor, "*rows V"]]:
    """Both distributions in float64, tokens in order of P/q ascending; tokens without draft mass last."""
    _check_pair(target_probs, draft_probs)
    check_count("k", k)
    target, draft = target_probs.double(), draft_probs.double()
    ratio = torch.where(draft > 0, target / draft.clamp(min=1e-300), math.inf)
    order = ratio.argsort(-1)
    return target.gather(-1, order), draft.gather(-1, order)


def _check_pair(
    target_probs: Float[Tensor, "*rows V"], draft_probs: Float[Tensor, "*rows V"], may_be_empty: bool = False
) -> None:
    check_distributions("target_probs", target_probs)
    check_distributions("draft_probs", draft_probs, may_be_empty)
    if target_probs.shape != draft_probs.shape:
        shapes = f"{list(target_probs.shape)} and {list(draft_probs.shape)}"
        raise ConfigError(f"target_probs and draft_probs must have one shape, got {shapes}")


def _all_inside(draft: Float[Tensor, " V"], k: int, tolerance: float) -> tuple[Float[Tensor, " V"], float]:
    """Pr(k draws without replacement all fall in the prefix) for every prefix of `draft`, and an error bound."""
    mass = draft.cumsum(-1)
    if k == 1:
        return mass, 0.0
    # Summed from the other end, so that a small rest keeps its relative precision and the last one is exactly zero.
    rest = torch.cat([draft.flip(0).cumsum(0).flip(0)[1:], draft.new_zeros(1)])
    if k == 2:
        # Both draws are in H unless the second leaves it: sum of q (1 - lam / (1 - q)), 1 - q summed from the others.
        others = torch.nn.functional.pad(mass[:-1], (1, 0)) + rest
        return mass - rest * (draft / others.clamp(min=1e-300)).cumsum(-1), 0.0
    inside, error = _race(draft, rest, k, tolerance)
    # Prefixes that cannot hold k tokens, and the one that holds all, are known.
    inside[: k - 1] = 0
    inside[-1] = 1
    return inside, error


def _race(
    draft: Float[Tensor, " V"], rest: Float[Tensor, " V"], k: int, tolerance: float
) -> tuple[Float[Tensor, " V"], float]:
    """The integral over ring times for all prefixes at once: see `optimum_without_replacement`.

    Below the first panel at least k rings have probability at most t^k / k!; above the last one they are counted as
    certain, at an error of at most e^(-lam t) Pr(fewer than k rings), which decides when to stop.

    On a Bernstein ellipse of parameter rho around a panel [a, 2a] the integrand is at most `lam e^(-lam Re t)
    (1 + c^(k-1))` with c the largest |t| / Re t on the ellipse, since `|1 - e^-z| <= |z| / Re z (1 - e^(-Re z))`. Then
    a panel's `error <= 64/15 M rho^(2 - 2 m) / (1 - rho^-2)` for m points (Trefethen 2019, theorem 19.3). Summed over
    doubling panels, `a lam e^(-r a lam) / 2` is at most `(1 / ln 2 + 1 / e) / (2 r)` with r a the ellipse's leftmost
    point: together `_PANEL_ERROR`.
    """
    start = (tolerance / 4 * math.factorial(k + 1)) ** (1 / (k + 1))
    points, weights = (torch.as_tensor(a, device=draft.device) for a in np.polynomial.legendre.leggauss(_POINTS))
    is_open = (rest > 0) & (torch.arange(1, len(rest) + 1, device=rest.device) >= k)
    inside = torch.zeros_like(draft)
    while True:
        times = start * (1.5 + points / 2)
        few = _fewer_rings(draft, times, k)
        decay = torch.exp(-rest * times.unsqueeze(1))
        inside += rest * (start / 2 * weights @ (decay * (1 - few)))
        start *= 2
        missing = float((decay[-1] * few[-1])[is_open].max()) if is_open.any() else 0.0
        if missing <= tolerance / 4 or start > 1e60:
            break
    inside += torch.exp(-rest * start)
    rounding = draft.shape[0] * math.exp(-_HEAVY)
    return inside, tolerance / 4 + _PANEL_ERROR + missing + rounding


def _fewer_rings(draft: Float[Tensor, " V"], times: Float[Tensor, " M"], k: int) -> Float[Tensor, "M V"]:
    """Pr(fewer than k tokens of the prefix have rung by t).

    `e^(-q(H) t) sum over j < k of e_j(e^(q t) - 1)` with elementary symmetric sums e_j as nested cumulative sums.
    Tokens that have certainly rung are counted instead of multiplied, which would overflow.
    """
    exponent = draft * times.unsqueeze(1)
    is_heavy = exponent > _HEAVY
    odds = torch.expm1(exponent).masked_fill_(is_heavy, 0.0)
    num_heavy = is_heavy.long().cumsum(1)
    quiet = torch.exp(-exponent.masked_fill(is_heavy, 0.0).cumsum(1))
    total = torch.ones_like(odds)
    few = torch.where(num_heavy == k - 1, quiet, 0.0)
    symmetric = total
    for j in range(1, k):
        # For the empty prefix, e_0 is one and all others are zero.
        before = torch.nn.functional.pad(symmetric[:, :-1], (1, 0), value=1.0 if j == 1 else 0.0)
        symmetric = (odds * before).cumsum(1)
        total = total + symmetric
        few = torch.where(num_heavy == k - 1 - j, quiet * total, few)
    # Where `quiet` underflows the sums may overflow; fewer than k <= 16 rings are then impossible to within e^-300.
    return torch.where(quiet > 0, few, 0.0).clamp(max=1.0)
