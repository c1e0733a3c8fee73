"""The most that any lossless rule can accept, so that every rule can be reported as a share of it.

Per node, with drafted siblings T: `alpha* = 1 + min over token sets H of [P(H) - Pr(all siblings in H)]`, the value of
an optimal transport problem (Sun et al. 2023, SpecTr; Hu et al. 2025, Towards Optimal Multi-draft Speculative
Decoding). For siblings drawn from one law, with or without replacement, the best H is a prefix of the tokens sorted by
P/q ascending, so a scan finds it at full vocabulary size. For whole trees there is an upper bound in closed form.

Axis letters: V vocabulary, k siblings, L path length; `...` stands for any leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from treespec.errors import ConfigError

_MAX_SIBLINGS = 16
_SUM_TOLERANCE = 0.01  # What half precision needs; logits and counts are far off.
_HEAVY = 40.0  # A clock of rate q rings before t = 40 / q but for a probability of e^-40 < 5e-18.


class Bounded(NamedTuple):
    """A value and a bound on its absolute error."""

    value: float
    error: float


def optimum_iid(target_probs: Tensor, draft_probs: Tensor, k: int) -> Tensor:
    """Optimal acceptance probability of a node with k i.i.d. siblings: a prefix scan with `Pr = q(H)^k`.

    Args:
        target_probs: float [..., V].
        draft_probs: float [..., V], the law that the siblings are drawn from.
        k: at least 1; 1 gives `sum(min(P, q))`.

    Returns:
        float64 [...]; O(V log V).

    Raises:
        ConfigError: shapes that differ, laws that are none, or k < 1.
    """
    target, draft = _sorted_by_ratio(target_probs, draft_probs, k)
    return 1 + (target.cumsum(-1) - draft.cumsum(-1) ** k).amin(-1).clamp(max=0)


def optimum_without_replacement(target_probs: Tensor, draft_probs: Tensor, k: int, tolerance: float = 1e-9) -> Bounded:
    """Optimal acceptance probability of a node with k siblings drawn without replacement.

    The same prefix scan. Let every token ring at an exponential time of rate q: the first k to ring are the siblings,
    so `Pr(H) = integral of lam e^(-lam t) Pr(at least k rings in H by t) dt` with `lam = 1 - q(H)`. In closed form for
    k <= 2; otherwise by Gauss-Legendre quadrature on panels of doubling length, the same points for all prefixes, with
    a proven error bound: O(k V) per point, some 200 points.

    Args:
        target_probs: float [V].
        draft_probs: float [V], the law of the first draw.
        k: 1 to 16. Where fewer tokens have any mass, the siblings are all of those.
        tolerance: the error bound to reach; rounding adds about 1e-12.

    Raises:
        ConfigError: shapes that differ, laws that are none, k outside 1 to 16, or a tolerance outside [1e-12, 1).
    """
    target, draft = _sorted_by_ratio(target_probs, draft_probs, k)
    if target.ndim != 1 or k > _MAX_SIBLINGS:
        raise ConfigError(f"expected laws [V] and at most {_MAX_SIBLINGS} siblings, got {list(target.shape)} and k={k}")
    if not 1e-12 <= tolerance < 1:
        raise ConfigError(f"tolerance must lie in [1e-12, 1), which float64 can keep, got {tolerance}")
    has_mass = draft > 0
    target, draft = target[has_mass], draft[has_mass]
    k = min(k, draft.shape[0])
    inside, error = _all_inside(draft, k, tolerance)
    return Bounded(1 + min(0.0, float((target.cumsum(-1) - inside).min())), error)


def optimum_selected(target_probs: Tensor, tokens: Tensor) -> Tensor:
    """Optimal acceptance of selected siblings: `P(tokens)`, which the target walk attains.

    Args:
        target_probs: float [..., V].
        tokens: int64 [..., k]; a token that stands twice counts once.

    Returns:
        float64 [...].

    Raises:
        ConfigError: a target law that is none.
    """
    _check_law("target_probs", target_probs)
    is_child = torch.zeros_like(target_probs, dtype=torch.bool).scatter(-1, tokens, True)
    return (target_probs.double() * is_child).sum(-1)


def optimum_mixed(target_probs: Tensor, draft_probs: Tensor, selected: Tensor) -> Tensor:
    """Optimal acceptance of some selected siblings and one sampled from the rest: H holds all selected ones.

    Args:
        target_probs: float [..., V].
        draft_probs: float [..., V], the law of the sampled sibling, zero on the selected tokens; zero everywhere where
            the selected ones leave nothing to sample, which makes it `optimum_selected`.
        selected: int64 [..., k - 1].

    Returns:
        float64 [...].

    Raises:
        ConfigError: shapes that differ or laws that are none.
    """
    _check_laws(target_probs, draft_probs, 1, may_be_empty=True)
    target, draft = target_probs.double(), draft_probs.double()
    certain = optimum_selected(target, selected)
    target = target.scatter(-1, selected, 0.0)
    with_sample = 1 + (certain + (target - draft).clamp(max=0).sum(-1)).clamp(max=0)
    return torch.where((draft > 0).any(-1), with_sample, certain)


def path_bound(target_probs: Tensor, inclusion_probs: Tensor) -> Tensor:
    """One sample of the whole-tree bound at full vocabulary size: its mean over paths drawn from the target is U.

    `U(s) / P(s)` is the least of 1 and inclusion / P over the prefixes of s, so with a path s drawn from the target
    `sum over its prefixes of U / P` has the mean `sum over all s of U(s)`: see `tree_bound`.

    Args:
        target_probs: float [..., L], the target's probability of each prefix (1 to L tokens) of a path drawn from it.
        inclusion_probs: float [..., L], the probability that the drafted tree holds that prefix.

    Returns:
        float64 [...].
    """
    share = (inclusion_probs.double() / target_probs.double()).clamp(max=1)
    return share.cummin(-1).values.sum(-1)


Path = tuple[int, ...]


def tree_bound(target_law: Callable[[Path], Any], inclusion: Callable[[Path], float], max_depth: int) -> float:
    """Upper bound on the accepted draft tokens of any lossless rule on whole trees of any drafter.

    `U(root) = 1, U(s x) = min(P(x | s) U(s), Pr(s x in the tree))` and `E[accepted] <= sum of U`; attained on
    deterministic trees, not always on sampled ones. Visits every path that U gives mass: for toys, or for trees whose
    paths are few.

    Args:
        target_law: the target law [V] after the tokens of a path below the root.
        inclusion: the probability that the drafted tree holds a path of tokens; see `shape_inclusion`.
        max_depth: depth of the tree.
    """

    def below(path: Path, bound: float) -> float:
        if len(path) == max_depth:
            return 0.0
        total = 0.0
        for token, prob in enumerate(target_law(path)):
            child = (*path, token)
            value = min(float(prob) * bound, inclusion(child)) if prob > 0 else 0.0
            total += value + below(child, value) if value > 0 else 0.0
        return total

    return below((), 1.0)


def shape_inclusion(
    parents: Sequence[int], draft_law: Callable[[Path], Any], is_without_replacement: bool = False
) -> Callable[[Path], float]:
    """The probability that a tree of fixed shape, children drawn from the draft law, holds a path of tokens.

    Args:
        parents: the shape, one parent per node, -1 for the root.
        draft_law: the draft law [V] after the tokens of a path below the root.
        is_without_replacement: how siblings are drawn; otherwise i.i.d.

    Returns:
        A function of a path of tokens below the root. Without replacement, k siblings cost O(V^(k-1)): for toys.
    """
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)

    @cache
    def draws(path: Path, k: int) -> list[np.ndarray]:
        return list(_draw_laws(np.asarray(draft_law(path), dtype=np.float64), k))

    @cache
    def held(node: int, path: Path, depth: int) -> float:
        """Pr(the subtree of `node`, reached by `path[:depth]`, holds the rest of the path)."""
        if depth == len(path):
            return 1.0
        rest = [held(child, path, depth + 1) for child in children[node]]
        if is_without_replacement:
            laws = draws(path[:depth], len(rest))
            return sum(float(law[path[depth]]) * r for law, r in zip(laws, rest, strict=True))
        prob = float(draft_law(path[:depth])[path[depth]])
        return 1 - math.prod(1 - prob * r for r in rest)

    return lambda path: held(0, path, 0)


def _draw_laws(law: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """The unconditional law of the first to the k-th draw without replacement; zero once nothing is left to draw."""
    if k == 0:
        return
    yield law
    later = [np.zeros_like(law) for _ in range(k - 1)]
    for token in np.flatnonzero(law):
        rest = law.copy()
        rest[token] = 0
        if k > 1 and rest.sum() > 0:
            for total, part in zip(later, _draw_laws(rest / rest.sum(), k - 1), strict=True):
                total += law[token] * part
    yield from later


def _check_laws(target_probs: Tensor, draft_probs: Tensor, k: int, may_be_empty: bool = False) -> None:
    if target_probs.shape != draft_probs.shape or k < 1:
        raise ConfigError(
            f"expected laws of one shape and k >= 1, got {list(target_probs.shape)}, {list(draft_probs.shape)}, k={k}"
        )
    _check_law("target_probs", target_probs)
    _check_law("draft_probs", draft_probs, may_be_empty)


def _check_law(name: str, probs: Tensor, may_be_empty: bool = False) -> None:
    if not probs.is_floating_point() or probs.ndim == 0 or probs.shape[-1] == 0:
        raise ConfigError(f"{name} must be floats [..., V], got {probs.dtype} {list(probs.shape)}")
    total = probs.double().sum(-1)
    # NaN fails every comparison, so `not (good)` rather than `bad`.
    is_law = (probs >= 0).all(-1) & (((total - 1).abs() <= _SUM_TOLERANCE) | ((total == 0) & may_be_empty))
    if not is_law.all():
        raise ConfigError(
            f"{name} must hold probabilities: entries from {float(probs.min()):.6g} to {float(probs.max()):.6g}, "
            f"sums from {float(total.min()):.6g} to {float(total.max()):.6g}. Pass probabilities, not logits"
        )


def _sorted_by_ratio(target_probs: Tensor, draft_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Both laws float64 [..., V], tokens in order of P/q ascending; tokens without draft mass last."""
    _check_laws(target_probs, draft_probs, k)
    target, draft = target_probs.double(), draft_probs.double()
    ratio = torch.where(draft > 0, target / draft.clamp(min=1e-300), math.inf)
    order = ratio.argsort(-1)
    return target.gather(-1, order), draft.gather(-1, order)


def _all_inside(draft: Tensor, k: int, tolerance: float) -> tuple[Tensor, float]:
    """Pr(k draws without replacement all fall in the prefix) for every prefix [V] of `draft`, and an error bound."""
    mass = draft.cumsum(-1)
    if k == 1:
        return mass, 0.0
    # Summed from the other end, so that a small rest keeps its relative precision and the last one is exactly zero.
    rest = torch.cat([draft.flip(0).cumsum(0).flip(0)[1:], draft.new_zeros(1)])
    if k == 2:
        # Both draws lie in H unless the second leaves it: sum of q (1 - lam / (1 - q)), 1 - q summed from the others.
        others = torch.nn.functional.pad(mass[:-1], (1, 0)) + rest
        return mass - rest * (draft / others.clamp(min=1e-300)).cumsum(-1), 0.0
    inside, error = _race(draft, rest, k, tolerance)
    # Prefixes that cannot hold k tokens, and the one that holds all, are known.
    inside[: k - 1] = 0
    inside[-1] = 1
    return inside, error


def _race(draft: Tensor, rest: Tensor, k: int, tolerance: float) -> tuple[Tensor, float]:
    """The integral over ring times for all prefixes at once: see `optimum_without_replacement`.

    Below the first panel at least k rings have probability at most t^k / k!; above the last one they are counted as
    certain, at an error of at most e^(-lam t) Pr(fewer than k rings), which decides when to stop.
    """
    start = (tolerance / 4 * math.factorial(k + 1)) ** (1 / (k + 1))
    num_points, panel_error = _points_per_panel(k, tolerance / 4)
    points, weights = (torch.as_tensor(a, device=draft.device) for a in np.polynomial.legendre.leggauss(num_points))
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
    return inside, tolerance / 4 + panel_error + missing + rounding


def _fewer_rings(draft: Tensor, times: Tensor, k: int) -> Tensor:
    """Pr(fewer than k tokens of the prefix have rung by t), [times, V].

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
        # Of the empty prefix e_0 is one and all others are zero.
        before = torch.nn.functional.pad(symmetric[:, :-1], (1, 0), value=1.0 if j == 1 else 0.0)
        symmetric = (odds * before).cumsum(1)
        total = total + symmetric
        few = torch.where(num_heavy == k - 1 - j, quiet * total, few)
    # Where `quiet` underflows the sums may overflow; fewer than k <= 16 rings are then impossible to within e^-300.
    return torch.where(quiet > 0, few, 0.0).clamp(max=1.0)


def _points_per_panel(k: int, tolerance: float) -> tuple[int, float]:
    """The number of Gauss-Legendre points that keeps the error over all panels below `tolerance`, and the bound itself.

    On a Bernstein ellipse of parameter rho around a panel [a, 2a] the integrand is at most `lam e^(-lam Re t)
    (1 + c^(k-1))` with c the largest |t| / Re t on the ellipse, since `|1 - e^-z| <= |z| / Re z (1 - e^(-Re z))`. Then
    `error <= 64/15 M rho^(2 - 2 m) / (1 - rho^-2)` for m points (Trefethen 2019, theorem 19.3). Summed over doubling
    panels, `a lam e^(-r a lam) / 2` is at most `(1 / ln 2 + 1 / e) / (2 r)` with r a the ellipse's leftmost point.
    """
    num_points, bound = 4, math.inf
    while bound > tolerance:
        num_points += 1
        bound = min(_panel_bound(k, num_points, rho) for rho in np.linspace(2.0, 5.7, 38).tolist())
    return num_points, bound


def _panel_bound(k: int, num_points: int, rho: float) -> float:
    long, short = (rho + 1 / rho) / 4, (rho - 1 / rho) / 4
    slant = math.sqrt(1 + short**2 / (1.5**2 - long**2))
    panels = (1 / math.log(2) + 1 / math.e) / (2 * (1.5 - long))
    return 64 / 15 * (1 + slant ** (k - 1)) * panels * rho ** (2 - 2 * num_points) / (1 - rho**-2)


__all__ = [
    "Bounded",
    "optimum_iid",
    "optimum_mixed",
    "optimum_selected",
    "optimum_without_replacement",
    "path_bound",
    "shape_inclusion",
    "tree_bound",
]
