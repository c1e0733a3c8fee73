"""Optimal transport per node, on drafts of small support and at most two siblings.

Given the drafted siblings T, accept y in T with probability pi(T, y) / Pr(T), pi a maximum flow from all the pairs that
might have been drafted (supply Pr(T)) to the tokens (demand P[y]); else draw from `res(P - sum_T pi(T, .))`, which is
the same for all T. No rule accepts more at one node (Sun et al. 2023, SpecTr, section 4; Khisti et al. 2025).

The flow has m(m + 1)/2 pairs for a draft law of m tokens, so these rules serve truncated drafts (`truncate_law`): a
visited node with 49,152 tokens costs some 0.4 ms for m = 10 and 0.7 ms for m = 20 on a CPU, against 0.25 ms for
recursive rejection. Both rules admit i.i.d. siblings and draws without replacement, of widths fixed before the first
draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import IID, WITHOUT_REPLACEMENT, TreeBatch, Verdict
from treespec.verification.admission import Admission, check_admission
from treespec.verification.flow import best_transport, pair_supply

MAX_SUPPORT = 20

_ADMISSION = Admission(
    frozenset({IID, WITHOUT_REPLACEMENT}), needs_fixed_width=True, max_siblings=2, max_support=MAX_SUPPORT
)


@dataclass(frozen=True)
class OptimalTransport:
    """From the root down: at each node accept one of the siblings by the best transport, descend, start again."""

    name = "optimal_transport"
    is_lossless = True
    admission = _ADMISSION

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        """Judge one tree; asks for the target law of accepted nodes only."""
        path = [0]
        while True:
            node = path[-1]
            law, children = target_law(node), tree.children(node)
            if not children:
                return Verdict(tuple(path), chooser.pick(node, law), is_bonus=True)
            probs, rest = _transport(tree, children, law)
            child = next((c for c, prob in zip(children, probs, strict=True) if chooser.flip(c, prob)), None)
            if child is None:
                # In exact arithmetic a rejection leaves mass; where rounding leaves none, the law before it stands.
                return Verdict(tuple(path), chooser.pick(node, rest if rest.sum() > 0 else law), is_bonus=False)
            path.append(child)


@dataclass(frozen=True)
class TransportTraversal:
    """From the leaves up, as in traversal: a node entered with mass a transports its siblings to the demands `a P`.

    The siblings are entered with their conditional mass `f_i / (1 - f_1 - .. - f_(i-1))`, `f_i = pi(T, x_i) / Pr(T)`;
    after all were rejected `w = (a P - sum_T pi)+`, `S = sum(w)`, and the node itself is accepted with probability
    `S / (S + (1 - a))` and followed by `w / S`.
    """

    name = "transport_traversal"
    is_lossless = True
    admission = _ADMISSION

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        """Judge one tree; asks for the target law of no subtree that is entered with mass zero."""
        visits = [_enter(0, 1, tree, target_law)]
        while True:
            visit = visits[-1]
            if visit.waiting:
                child, child_mass = visit.waiting.pop()
                # Mass zero accepts nothing. (Not `> 0`: NaN must go on to a decision, which raises.)
                if child_mass != 0:
                    visits.append(_enter(child, child_mass, tree, target_law))
            elif len(visits) == 1 or chooser.flip(visit.node, visit.mass):
                law = target_law(visit.node) if visit.law is None else visit.law
                path = tuple(v.node for v in visits)
                return Verdict(path, chooser.pick(visit.node, law), is_bonus=visit.law is None)
            else:
                visits.pop()


@dataclass(frozen=True)
class _Visit:
    """An entered node: its children with the masses they are entered with, the first one last, and the mass and the law
    (None at a leaf) that are left for the node itself when all of them are rejected."""

    node: int
    mass: Any
    law: Any | None
    waiting: list[tuple[int, Any]]


def _enter(node: int, mass: Any, tree: VerifiableTree, target_law: TargetLaw) -> _Visit:
    children = tree.children(node)
    if not children:
        return _Visit(node, mass, None, [])
    law = target_law(node)
    child_masses, rest = _transport(tree, children, mass * law)
    waiting = list(reversed(list(zip(children, child_masses, strict=True))))
    total = rest.sum()
    if total == 0:
        # Nothing is left below rejected children. The root, never flipped, emits from its own law.
        return _Visit(node, 0, law, waiting)
    return _Visit(node, total / (total + (1 - mass)), rest, waiting)


def _transport(tree: Any, children: Sequence[int], weights: Any) -> tuple[list[Any], Any]:
    """Transport the children to the demands `weights` [V].

    `tree` is a `VerifiableTree` none of whose children are point masses. Returns each child's probability of
    acceptance given that its earlier siblings were rejected, and the weights [V] that are left when all are.
    """
    tokens = [tree.token(child) for child in children]
    draft_law = tree.law(children[0])
    support = _support(draft_law)
    draft, demand = draft_law[support].tolist(), weights[support].tolist()
    total = sum(draft)  # One but for the rounding of float32.
    draft = [prob / total for prob in draft]
    if len(children) == 1:
        i = support.index(tokens[0])
        taken = [min(d, q) for d, q in zip(demand, draft, strict=True)]  # In this order NaN stays NaN.
        return [taken[i] / draft[i]], _less(weights, support, taken)
    # A second draw that could not have been the first token again was one without replacement.
    supply = pair_supply(draft, is_without_replacement=not tree.law(children[1])[tokens[0]] > 0)
    accepted = best_transport(demand, supply)
    i, j = (support.index(token) for token in tokens)
    first = accepted[i][j] / supply[i][j]
    second = 0 * first if i == j or not first < 1 else min(accepted[j][i] / supply[i][j] / (1 - first), 1)
    return [first, second], _less(weights, support, [sum(row) for row in accepted])


def _support(law: Any) -> list[int]:
    """Tokens of positive mass."""
    nonzero = law.nonzero(as_tuple=True) if isinstance(law, Tensor) else law.nonzero()
    return nonzero[0].tolist()


def _less(weights: Any, support: Sequence[int], taken: Sequence[Any]) -> Any:
    """`(weights - taken)+`, an array [V]; `taken` holds the support's entries."""
    rest = weights.clip(min=0)  # Copies, on every kind of array.
    for token, mass in zip(support, taken, strict=True):
        rest[token] = max(rest[token] - mass, 0)
    return rest
