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
        verdict = _visit(0, 1, (0,), tree, target_law, chooser)
        assert verdict is not None, "the root is always accepted"
        return verdict


def _visit(
    node: int, mass: Any, path: tuple[int, ...], tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser
) -> Verdict | None:
    """Judge the subtree of `node` (the last of `path`), entered with `mass`; None: nothing in it is accepted."""
    children, is_root = tree.children(node), node == 0
    if not children:
        is_kept = is_root or chooser.flip(node, mass)
        return Verdict(path, chooser.pick(node, target_law(node)), is_bonus=True) if is_kept else None
    law = target_law(node)
    child_masses, rest = _transport(tree, children, mass * law)
    for child, child_mass in zip(children, child_masses, strict=True):
        verdict = None if child_mass == 0 else _visit(child, child_mass, (*path, child), tree, target_law, chooser)
        if verdict is not None:
            return verdict
    total = rest.sum()
    if not total > 0:
        return Verdict(path, chooser.pick(node, law), is_bonus=False) if is_root else None
    if is_root or chooser.flip(node, total / (total + (1 - mass))):
        return Verdict(path, chooser.pick(node, rest), is_bonus=False)
    return None


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
