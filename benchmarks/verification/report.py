"""Tables of what `benchmarks.verification` measured."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.estimates import quotient
from benchmarks.common.settings import markdown_table
from treespec.lab.measure.paired import Estimate
from treespec.verification import RULES

BOUND = "bound"
DETERMINISTIC = "best first, selected"
DEFAULT = ("best first, sampled", "traversal")
AIM = 1.3


def standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def cells_of(part: dict[str, Any]) -> tuple[list[int], dict[str, dict[int, dict[str, list[float]]]]]:
    """Sizes, and the cells as kind, size, rule: from keys such as "n=8, chain"."""
    kinds: dict[str, dict[int, dict[str, list[float]]]] = {}
    for key, rules in part.items():
        size, kind = key.removeprefix("n=").split(", ", 1)
        kinds.setdefault(kind, {})[int(size)] = rules
    return sorted({size for sizes in kinds.values() for size in sizes}), kinds


def acceptance_table(part: dict[str, Any]) -> str:
    """Rows: kind and rule, the bound last; columns: sizes; `1 + accepted ± standard error (share)`."""
    sizes, kinds = cells_of(part)
    rows = []
    for kind, by_size in kinds.items():
        names = dict.fromkeys(name for rules in by_size.values() for name in rules)
        for name in sorted(names, key=lambda name: name == BOUND):
            label = "**bound**" if name == BOUND else name if RULES[name].is_lossless else f"*{name}* (lossy)"
            rows.append([kind, label, *(_cell(by_size.get(size, {}), name) for size in sizes)])
    return markdown_table(["tree", "rule", *(f"n = {size}" for size in sizes)], rows)


def _cell(rules: dict[str, list[float]], name: str) -> str:
    if name not in rules:
        return ""
    text = f"{1 + fmean(rules[name]):.3f} ± {standard_error(rules[name]):.3f}"
    if BOUND not in rules or name == BOUND or not RULES[name].is_lossless:
        return text
    return f"{text} ({100 * fmean(rules[name]) / fmean(rules[BOUND]):.0f} %)"


class Factor(NamedTuple):
    """Over the deterministic tree with the target walk: `choices` (tree, rule), of how many; mean lengths; factors in
    tokens per pass and in accepted draft tokens, each with a 95 % interval."""

    choices: list[tuple[str, str]]
    num_choices: int
    length: float
    reference_length: float
    tokens: Estimate
    accepted: Estimate


def factors(part: dict[str, Any], texts: Sequence[int]) -> dict[tuple[int, str], Factor]:
    """By tree size: the default sampled tree with its default rule, and the best pair, chosen without hindsight.

    Texts of even and of odd numbers choose for each other: what counts of a context is what the pair accepts there that
    accepts most on the other half.
    """
    sizes, kinds = cells_of(part)
    half = np.asarray(texts) % 2
    found = {}
    for size in sizes:
        reference = np.asarray(kinds[DETERMINISTIC][size]["target_walk"])
        pairs = {
            (kind, name): np.asarray(by_size[size][name])
            for kind, by_size in kinds.items()
            for name in by_size[size]
            if kind != DETERMINISTIC and name in RULES and RULES[name].is_lossless
        }
        best = [max(pairs, key=lambda pair, side=side: pairs[pair][half == side].mean()) for side in (1, 0)]
        chosen = np.where(half == 0, pairs[best[0]], pairs[best[1]])
        found[size, "best"] = _factor(best, len(pairs), chosen, reference, texts)
        found[size, "default"] = _factor([DEFAULT], 1, pairs[DEFAULT], reference, texts)
    return found


def _factor(
    choices: list[tuple[str, str]], num_choices: int, above: np.ndarray, below: np.ndarray, texts: Sequence[int]
) -> Factor:
    return Factor(
        list(dict.fromkeys(choices)),
        num_choices,
        1 + above.mean(),
        1 + below.mean(),
        quotient(1 + above, 1 + below, texts),
        quotient(above, below, texts),
    )


def factor_table(results: dict[str, Any]) -> str:
    rows = [
        [
            case,
            str(size),
            f"{name} of {f.num_choices}" if name == "best" else name,
            " / ".join(f"{kind}: {rule}" for kind, rule in f.choices),
            f"{f.length:.2f}",
            f"{f.reference_length:.2f}",
            f.tokens.text(),
            f.accepted.text(),
        ]
        for case, part in results.items()
        for (size, name), f in factors(part["cells"], part["contexts"]["text"]).items()
    ]
    header = ["", "nodes", "", "sampled tree: rule", "length", "deterministic tree, target walk"]
    return markdown_table([*header, "factor, tokens per pass", "factor, accepted draft tokens"], rows)


def entropy_table(results: dict[str, Any]) -> str:
    """The default's factor for low, middle and high entropy of the target: contexts in thirds by entropy."""
    rows, header = [], ["", "target", "contexts", "entropy, nats", "sum min(P, q)"]
    for case, part in results.items():
        sizes, kinds = cells_of(part["cells"])
        about = {key: np.asarray(values) for key, values in part["contexts"].items()}
        thirds = np.array_split(np.argsort(about["entropy"], kind="stable"), 3)
        for name, third in zip(("sure", "between", "unsure"), thirds, strict=True):
            row = [case, name, str(len(third)), *(f"{about[key][third].mean():.2f}" for key in ("entropy", "overlap"))]
            for size in sizes:
                above = np.asarray(kinds[DEFAULT[0]][size][DEFAULT[1]])[third]
                below = np.asarray(kinds[DETERMINISTIC][size]["target_walk"])[third]
                row.append(quotient(above, below, about["text"][third].tolist()).text())
            rows.append(row)
        header = [*header[:5], *(f"n = {size}" for size in sizes)]
    return markdown_table(header, rows)


def report(data: dict[str, Any]) -> str:
    results = data["results"]
    lines = ["# Verification rules: acceptance, share of the bound", ""]
    lines += ["## Sampled trees against the deterministic tree", "", _FACTOR_TEXT, "", factor_table(results)]
    lines += [_THIRDS_TEXT, "", entropy_table(results)]
    for case, part in results.items():
        lines += [f"## {case}, {len(part['contexts']['text'])} contexts", "", _TREE_TEXT, ""]
        lines += [acceptance_table(part["cells"])]
    sizes = ", ".join(
        f"{name.replace('_', ' ')} {data[name]}" for name in ("draws", "bound_paths", "new_tokens", "seed")
    )
    load = f"load {data['load_average']} to {data['load_average_after']}"
    return "\n".join([*lines, f"{data['seconds']} s, {load}, {sizes}.\n"])


_FACTOR_TEXT = (
    "Mean acceptance length (1 + accepted draft tokens). The deterministic tree holds the draft's most probable paths "
    "(best first, no limit of depth), and the target walk is the best lossless rule there. *Default*: `BestFirst` with "
    "sampled children (8 nodes expanded per level at most) and traversal. *Best*: of all sampled trees and lossless "
    "rules the pair that accepts most on the texts of even number counts on those of odd number, and the other way "
    "round, so no context chooses for itself; two pairs where the halves choose differently. In brackets 95 % of a "
    f"bootstrap over whole texts, paired. The aim at T = 1 is {AIM} times the tokens per pass."
)
_THIRDS_TEXT = (
    "The default's factor in accepted draft tokens, contexts in thirds by the mean entropy of the target along paths "
    "drawn from it (the thirds look at the distributions and not at what was accepted):"
)
_TREE_TEXT = (
    "Mean acceptance length ± standard error over contexts, all rules on the same trees; n counts the root. In "
    "brackets the share of the whole-tree bound in closed form, where there is one: the bound is not always attained, "
    "and is itself estimated from paths sampled from the target."
)
