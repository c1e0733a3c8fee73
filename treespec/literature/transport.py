"""Optimal transport on drafts of small support and at most two siblings: from the root down, and from the leaves up.

Given the drafted siblings T, accept y in T with probability pi(T, y) / Pr(T), pi a maximum flow from all the pairs that
might have been drafted (supply Pr(T)) to the tokens (demand P[y]); else draw from `res(P - sum_T pi(T, .))`, which is
the same for all T. No rule accepts more at one node (Sun et al. 2023, SpecTr, section 4; Khisti et al. 2025).

The flow has m(m + 1)/2 pairs for a draft distribution of m tokens, so these rules need truncated drafts
(`truncate_probs`), and siblings i.i.d. or drawn without replacement, of widths fixed before the first draw.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import IID, WITHOUT_REPLACEMENT, Verdict
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import Visit, walk_down, walk_up

MAX_SUPPORT = 20
Matrix = list[list[Any]]
"""Python floats or Fractions over a small support of n tokens: nothing here is approximate."""

_REQUIREMENTS = Requirements(
    frozenset({IID, WITHOUT_REPLACEMENT}), needs_fixed_width=True, max_siblings=2, max_support=MAX_SUPPORT
)


@dataclass(frozen=True)
class OptimalTransport(BaseRule):
    """From the root down: at each node accept one of the siblings by the best transport and descend."""

    name = "optimal_transport"
    is_lossless = True
    requirements = _REQUIREMENTS

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_down(tree, target_probs, rng, _verify_by_transport)


def _verify_by_transport(tree: VerifiableTree, node: int, probs: Any, rng: RandomSource) -> tuple[int | None, Any]:
    children = tree.children(node)
    accept_probs, rest = transport_siblings(tree, children, probs)
    for child, accept_prob in zip(children, accept_probs, strict=True):
        if rng.flip(child, accept_prob):
            return child, probs
    # In exact arithmetic a rejection leaves mass; where rounding leaves none, the distribution before it stands.
    return None, rest if rest.sum() > 0 else probs


@dataclass(frozen=True)
class TransportTraversal(BaseRule):
    """From the leaves up, as in traversal: a node entered with mass a transports its siblings to the demands `a P`.

    The siblings are entered with `f_i / (1 - f_1 - .. - f_(i-1))`, `f_i = pi(T, x_i) / Pr(T)`; after all were rejected
    the node is accepted as in traversal, with `w = (a P - sum_T pi)+`.
    """

    name = "transport_traversal"
    is_lossless = True
    requirements = _REQUIREMENTS

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_up(tree, target_probs, rng, _visits)


def _visits(tree: VerifiableTree, node: int, mass: Any, probs: Any) -> Iterator[Visit]:
    children = tree.children(node)
    masses, rest = transport_siblings(tree, children, mass * probs)
    yield from map(Visit, children, masses)
    total = rest.sum()
    # Where nothing is left below rejected children, the root, always accepted, emits from its own distribution.
    yield Visit(node, 0, probs) if total == 0 else Visit(node, total / (total + (1 - mass)), rest)


def transport_siblings(tree: Any, children: Sequence[int], weights: Any) -> tuple[list[Any], Any]:
    """Transport one or two siblings, in drawing order and not point masses, to the demands [V] of their parent.

    Returns each child's probability of acceptance given that its earlier siblings were rejected, and what is left [V].
    """
    tokens = [tree.token(child) for child in children]
    draft_probs = tree.draft_probs_of(children[0])
    nonzero = draft_probs.nonzero(as_tuple=True) if isinstance(draft_probs, Tensor) else draft_probs.nonzero()
    support = nonzero[0].tolist()
    draft, demand = draft_probs[support].tolist(), weights[support].tolist()
    total = sum(draft)  # 1 up to rounding in float32.
    draft = [prob / total for prob in draft]
    if len(children) == 1:
        i = support.index(tokens[0])
        taken = [min(d, q) for d, q in zip(demand, draft, strict=True)]  # In this order NaN stays NaN.
        return [taken[i] / draft[i]], _less(weights, support, taken)
    # If the second child's distribution excludes the first one's token, they were drawn without replacement.
    supply = pair_supply(draft, is_without_replacement=not tree.draft_probs_of(children[1])[tokens[0]] > 0)
    accepted = best_transport(demand, supply)
    i, j = (support.index(token) for token in tokens)
    first = accepted[i][j] / supply[i][j]
    second = 0 * first if i == j or not first < 1 else min(accepted[j][i] / supply[i][j] / (1 - first), 1)
    return [first, second], _less(weights, support, [sum(row) for row in accepted])


def _less(weights: Any, support: Sequence[int], taken: Sequence[Any]) -> Any:
    """`(weights - taken)+`, an array [V]; `taken` holds the support's entries."""
    rest = weights.clip(min=0)  # Copies, on every kind of array.
    for token, mass in zip(support, taken, strict=True):
        rest[token] = max(rest[token] - mass, 0)
    return rest


def pair_supply(draft: Sequence[Any], is_without_replacement: bool) -> Matrix:
    """`supply[i][j]`: the probability that the drafted pair is {i, j}, whatever its order, given n positive ones."""
    if not is_without_replacement:
        return [[p * q if i == j else 2 * p * q for j, q in enumerate(draft)] for i, p in enumerate(draft)]
    others = [sum(draft[:i]) + sum(draft[i + 1 :]) for i in range(len(draft))]
    return [
        [0 * p if i == j else p * q / others[i] + p * q / others[j] for j, q in enumerate(draft)]
        for i, p in enumerate(draft)
    ]


def best_transport(demand: Sequence[Any], supply: Matrix) -> Matrix:
    """The mass with which a drafted pair accepts each of its tokens, of the largest total that the demands allow.

    `accepted[i][j]` is the mass on which the pair {i, j} accepts i: `accepted[i][j] + accepted[j][i] <= supply[i][j]`
    and `sum over j of accepted[i][j] <= demand[i]`.

    Every pair is first assigned to one of its tokens in full. What a token then has beyond its demand moves along
    shortest paths to tokens below theirs (Edmonds and Karp 1972: at most n^3 augmentations, with floats too, since each
    one empties an edge exactly). Excess that no path can move is rejected, in proportion.
    """
    carried = _first_assignment(demand, supply)
    balance = [d - sum(row) for d, row in zip(demand, carried, strict=True)]
    while (path := _shortest_path(carried, balance)) is not None:
        source, *_, sink = path
        steps = list(pairwise(path))
        amount = min(-balance[source], balance[sink], *(carried[i][j] for i, j in steps))
        for i, j in steps:
            carried[i][j] -= amount
            carried[j][i] += amount
        balance[source] += amount
        balance[sink] -= amount
    return [_capped(row, demand[i]) for i, row in enumerate(carried)]


def _first_assignment(demand: Sequence[Any], supply: Matrix) -> Matrix:
    """Each pair goes to its token with the higher ratio of demand to supply."""
    supplied = [sum(row) for row in supply]
    tokens = range(len(demand))

    def is_first(i: int, j: int) -> bool:
        left, right = demand[i] * supplied[j], demand[j] * supplied[i]
        return left > right or (left == right and i <= j)

    return [[supply[i][j] if is_first(i, j) else 0 * supply[i][j] for j in tokens] for i in tokens]


def _shortest_path(carried: Matrix, balance: Sequence[Any]) -> list[int] | None:
    """A path from a token above its demand to one below it, over pairs that carry mass."""
    paths = deque([i] for i, lack in enumerate(balance) if lack < 0)
    reached = {path[0] for path in paths}
    while paths:
        path = paths.popleft()
        for j, mass in enumerate(carried[path[-1]]):
            if mass > 0 and j not in reached:
                if balance[j] > 0:
                    return [*path, j]
                reached.add(j)
                paths.append([*path, j])
    return None


def _capped(row: list[Any], demand: Any) -> list[Any]:
    total = sum(row)
    # `total > demand` would be False for a NaN demand and hide it; so the NaN is kept, and the decision raises.
    return row if total <= demand or not total > 0 else [mass * demand / total for mass in row]
