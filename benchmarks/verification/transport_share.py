"""How much of the optimum does each rule reach on whole trees? A thousand toys, all exact.

Each toy is a target and a draft over three tokens whose distributions change with the context; trees have two children
per node and depth two. Half of the toys have independent distributions, half a draft that resembles its target. A
linear programme over all trees that can be drafted gives the most that any lossless rule accepts; every rule's own mean
is computed exactly.

    python -m benchmarks.verification.transport_share [--toys 1000]
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from benchmarks.common.settings import RESULTS, markdown_table, parser, settings, settings_lines, write_json
from treespec.literature import kseq
from treespec.literature.optimum import shape_inclusion, tree_bound
from treespec.literature.transport import best_transport, pair_supply
from treespec.tree import IID, WITHOUT_REPLACEMENT

VOCAB_SIZE, DEPTH = 3, 2
PARENTS = [-1, 0, 0, 1, 1, 2, 2]

Context = tuple[int, ...]
Distributions = dict[Context, list[float]]
Pair = tuple[int, int]
NodeRule = Callable[[list[float], list[float], float, bool], dict[Pair, tuple[float, float]]]
"""Maps (target distribution, draft distribution, the mass that a node is entered with, whether siblings are drawn
without replacement) to the masses that the two siblings of every ordered pair are entered with; the second one's is
given that the first was rejected."""


def random_toy(rng: np.random.Generator, is_correlated: bool) -> tuple[Distributions, Distributions]:
    """Target and draft distributions by context; a correlated draft is its target with log-normal noise."""
    target, draft = {}, {}
    for length in range(DEPTH):
        for context in itertools.product(range(VOCAB_SIZE), repeat=length):
            probs = rng.dirichlet(np.ones(VOCAB_SIZE))
            other = (
                probs * np.exp(rng.normal(0, 0.7, VOCAB_SIZE)) if is_correlated else rng.dirichlet(np.ones(VOCAB_SIZE))
            )
            target[context], draft[context] = probs.tolist(), (other / other.sum()).tolist()
    return target, draft


def pair_distributions(draft: list[float], is_without_replacement: bool) -> dict[Pair, float]:
    """The distribution of the ordered pair of siblings."""
    tokens = range(VOCAB_SIZE)
    if not is_without_replacement:
        return {(x, y): draft[x] * draft[y] for x in tokens for y in tokens}
    return {(x, y): draft[x] * draft[y] / (1 - draft[x]) for x in tokens for y in tokens if x != y}


def accept_in_turn(
    target: list[float], draft: list[float], mass: float, is_without: bool
) -> dict[Pair, tuple[float, float]]:
    """Traversal; with mass one, recursive rejection."""
    masses = {}
    for x in range(VOCAB_SIZE):
        first = min(1.0, mass * target[x] / draft[x])
        rest = [max(mass * p - q, 0.0) for p, q in zip(target, draft, strict=True)]
        left = sum(rest) / (sum(rest) + 1 - mass) if sum(rest) > 0 else 0.0
        later = [0.0 if is_without and y == x else q / (1 - draft[x] if is_without else 1) for y, q in enumerate(draft)]
        for y in range(VOCAB_SIZE):
            if later[y] > 0:
                masses[x, y] = (first, min(1.0, left * rest[y] / sum(rest) / later[y]) if left > 0 else 0.0)
    return masses


def accept_by_transport(
    target: list[float], draft: list[float], mass: float, is_without: bool
) -> dict[Pair, tuple[float, float]]:
    supply = pair_supply(draft, is_without)
    accepted = best_transport([mass * p for p in target], supply)
    masses = {}
    for x, y in itertools.product(range(VOCAB_SIZE), repeat=2):
        if supply[x][y] > 0:
            first = accepted[x][y] / supply[x][y]
            masses[x, y] = (first, accepted[y][x] / supply[x][y] / (1 - first) if x != y and first < 1 else 0.0)
    return masses


def accept_by_k_seq(
    target: list[float], draft: list[float], mass: float, is_without: bool
) -> dict[Pair, tuple[float, float]]:
    ratio = float(kseq.tightening(np.array(target), np.array(draft), 2, 40))
    masses = [min(1.0, p / (ratio * q)) for p, q in zip(target, draft, strict=True)]
    return {(x, y): (masses[x], masses[y]) for x, y in itertools.product(range(VOCAB_SIZE), repeat=2)}


def mean_accepted(
    accept: NodeRule,
    is_joint: bool,
    is_without: bool,
    target: Distributions,
    draft: Distributions,
    context: Context = (),
    mass: float = 1.0,
) -> float:
    """Expected accepted tokens below a node: its siblings' subtrees are drawn apart, so their means multiply out.

    A joint rule visits a child with a mass and accepts in its subtree with just that probability on average; another
    one flips a coin of that probability and starts again below.
    """
    if len(context) == DEPTH:
        return 0.0

    def gain(token: int, child_mass: float) -> float:
        below = partial(mean_accepted, accept, is_joint, is_without, target, draft, (*context, token))
        return child_mass + (below(child_mass) if is_joint else child_mass * below(1.0))

    total = 0.0
    gains: dict[tuple[int, float], float] = {}
    masses = accept(target[context], draft[context], mass, is_without)
    for pair, prob in pair_distributions(draft[context], is_without).items():
        reached = prob
        for token, child_mass in zip(pair, masses[pair], strict=True):
            if child_mass > 0:
                key = (token, child_mass)
                gains[key] = gains[key] if key in gains else gain(token, child_mass)
                total += reached * gains[key]
            reached *= 1 - child_mass
    return total


def accepted_by_target_walk(
    is_without: bool, target: Distributions, draft: Distributions, context: Context = ()
) -> float:
    """The target walk descends to every token that is among the children; of two equal ones it takes the first."""
    if len(context) == DEPTH:
        return 0.0
    held = {
        x: sum(prob for pair, prob in pair_distributions(draft[context], is_without).items() if x in pair)
        for x in range(VOCAB_SIZE)
    }
    return sum(
        target[context][x] * held[x] * (1 + accepted_by_target_walk(is_without, target, draft, (*context, x)))
        for x in held
    )


RULES: dict[str, Callable[[bool, Distributions, Distributions], float]] = {
    "target_walk": accepted_by_target_walk,
    "recursive": partial(mean_accepted, accept_in_turn, False),
    "k_seq": partial(mean_accepted, accept_by_k_seq, False),
    "traversal": partial(mean_accepted, accept_in_turn, True),
    "optimal_transport": partial(mean_accepted, accept_by_transport, False),
    "transport_traversal": partial(mean_accepted, accept_by_transport, True),
}


def whole_tree_optimum(is_without: bool, target: Distributions, draft: Distributions) -> float:
    """E[accepted] of the best lossless rule, by a linear programme over all trees that can be drafted.

    a(T, s): the probability that T is drafted and accepted at least down to its path s. A rule with these masses exists
    if and only if those of siblings add up to at most their parent's, and, summed over T, `a(s x) <= P(x | s) a(s)`.
    """
    sets: dict[frozenset[Context], float] = defaultdict(float)
    for root, prob in pair_distributions(draft[()], is_without).items():
        probs = [pair_distributions(draft[(x,)], is_without).items() for x in root]
        for (left, left_prob), (right, right_prob) in itertools.product(*probs):
            paths = [(), *((x,) for x in root), *((root[0], x) for x in left), *((root[1], x) for x in right)]
            sets[frozenset(paths)] += prob * left_prob * right_prob
    number = {key: i for i, key in enumerate((t, s) for t, nodes in enumerate(sets) for s in nodes)}
    row_of_path: dict[Context, int] = {}
    entries: list[tuple[int, int, float]] = []
    for (t, s), column in number.items():
        entries.append((column, column, -1.0))
        if s:
            entries.append((number[t, s[:-1]], column, 1.0))
            row = len(number) + row_of_path.setdefault(s, len(row_of_path))
            entries += [(row, column, 1.0), (row, number[t, s[:-1]], -target[s[:-1]][s[-1]])]
    # A path that this tree lacks still limits the others by its parent's mass.
    for t, nodes in enumerate(sets):
        for s in row_of_path:
            if s not in nodes and s[:-1] in nodes:
                row = len(number) + row_of_path[s]
                entries.append((row, number[t, s[:-1]], -target[s[:-1]][s[-1]]))
    rows, columns, values = zip(*entries, strict=True)
    num_rows = len(number) + len(row_of_path)
    matrix = coo_matrix((values, (rows, columns)), shape=(num_rows, len(number)))
    bounds = [
        (prob, prob) if s == () else (0, None) for prob, nodes in zip(sets.values(), sets, strict=True) for s in nodes
    ]
    value = [0.0 if s == () else -1.0 for _, s in number]
    best = linprog(value, A_ub=matrix.tocsr(), b_ub=np.zeros(num_rows), bounds=bounds, method="highs")
    assert best.fun is not None, best.message
    return -best.fun


def measure(num_toys: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """Shares of the whole-tree optimum by scheme and kind of distributions, then by rule; `bound` is the optimum
    over U."""
    shares: dict[str, dict[str, list[float]]] = {}
    for number in range(num_toys):
        rng = np.random.default_rng([seed, number])
        kind = "correlated" if number % 2 else "independent"
        target, draft = random_toy(rng, kind == "correlated")
        for scheme in (IID, WITHOUT_REPLACEMENT):
            is_without = scheme == WITHOUT_REPLACEMENT
            found = shares.setdefault(f"{scheme}, {kind}", defaultdict(list))
            optimum = whole_tree_optimum(is_without, target, draft)
            for name, accepted in RULES.items():
                if name != "k_seq" or not is_without:
                    found[name].append(accepted(is_without, target, draft) / optimum)
            inclusion = shape_inclusion(PARENTS, draft.__getitem__, is_without)
            found["optimum / U"].append(optimum / tree_bound(target.__getitem__, inclusion, DEPTH))
    return shares


def summary(shares: list[float]) -> dict[str, Any]:
    values = np.array(shares)
    quantiles = {f"{100 * p:g} %": float(np.quantile(values, p)) for p in (0, 0.05, 0.25, 0.5, 0.75, 1)}
    # Bins of one percent, the last one for what reaches the optimum.
    histogram = np.histogram(values, bins=[*np.arange(0, 100) / 100, 1 - 1e-6, 1.01])[0].tolist()
    return {
        "toys": len(shares),
        "mean": float(values.mean()),
        "quantiles": quantiles,
        "attained": float((values > 1 - 1e-6).mean()),
        "histogram": histogram,
    }


def report(data: dict[str, Any]) -> str:
    header = ["siblings, distributions", "rule", "mean", "least", "5 %", "median", "attained in"]
    rows = [
        [
            case,
            name,
            *(f"{100 * x:.1f}" for x in (s["mean"], *(s["quantiles"][key] for key in ("0 %", "5 %", "50 %")))),
            f"{100 * s['attained']:.1f} %",
        ]
        for case, rules in data["results"].items()
        for name, s in rules.items()
    ]
    about = (
        f"{data['settings']['toys']} toys, half of them with correlated distributions; 3 tokens, depth 2, two "
        f"children per node."
        " Every number is exact, the spread is over the toys.\n"
        "`optimum / U` is the linear programme over the bound in closed form.\n\n"
    )
    table = f"{markdown_table(header, rows)}\n{settings_lines(data['settings'])}"
    return f"# Share of the whole-tree optimum, in percent\n\n{about}{table}"


def main() -> None:
    options = parser(str(__doc__).splitlines()[0], threads=1)
    options.add_argument("--toys", type=int, default=1000)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    start = time.perf_counter()
    shares = measure(arguments.toys, arguments.seed)
    results = {case: {name: summary(values) for name, values in rules.items()} for case, rules in shares.items()}
    seconds = round(time.perf_counter() - start, 1)
    data = {
        "settings": settings(seed=arguments.seed, toys=arguments.toys, seconds=seconds),
        "results": results,
    }
    write_json(RESULTS / "verification" / "transport_share.json", data)
    (RESULTS / "verification" / "transport_share.md").write_text(report(data))
    print(report(data))


if __name__ == "__main__":
    main()
