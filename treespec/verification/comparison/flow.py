"""Optimal transport from a drafted pair of siblings to the token that is accepted, as a maximum flow.

Everything is Python scalars (floats or Fractions) over a small support of n tokens; nothing here is approximate.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Matrix = list[list[Any]]


def pair_supply(draft: Sequence[Any], is_without_replacement: bool) -> Matrix:
    """`supply[i][j]`: the probability that the drafted pair is {i, j}, whatever its order; symmetric, n x n.

    `draft` holds the positive probabilities of the n tokens, which sum to one.
    """
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

    Every pair is first assigned to one of its tokens in full. What a token then has beyond its demand moves to the
    other token of its pairs, along shortest paths to a token below its demand (Edmonds and Karp 1972: at most n^3
    augmentations, in floating point too, since each one empties an edge exactly). Excess that no path can move is
    rejected, in proportion.
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
    """From a token above its demand to one below it, over pairs that carry mass."""
    before = {i: i for i, lack in enumerate(balance) if lack < 0}
    frontier = list(before)
    while frontier:
        reached = []
        for i in frontier:
            for j, mass in enumerate(carried[i]):
                if mass > 0 and j not in before:
                    before[j] = i
                    if balance[j] > 0:
                        return _traced(before, j)
                    reached.append(j)
        frontier = reached
    return None


def _traced(before: dict[int, int], end: int) -> list[int]:
    path = [end]
    while before[path[-1]] != path[-1]:
        path.append(before[path[-1]])
    return path[::-1]


def _capped(row: list[Any], demand: Any) -> list[Any]:
    total = sum(row)
    # Asked this way round, a demand that is NaN comes out as NaN, and the decision that it reaches raises.
    return row if total <= demand or not total > 0 else [mass * demand / total for mass in row]
