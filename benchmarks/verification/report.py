"""Tables and a picture of what `benchmarks.verification` measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common.estimates import quotient
from benchmarks.common.settings import markdown_table, settings_lines
from treespec.lab.measure.estimates import Estimate
from treespec.verification import RULES
from treespec.viz import ACCEPTED, GREY, INK, NEXT_EDGE, REFERENCE
from treespec.viz.trees import headed, plain_axes

OPTIMUM, BOUND = "optimum", "bound"
DETERMINISTIC = "best first, selected"
DEFAULT = ("best first, sampled", "traversal")
AIM = 1.3


def standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def cells_of(part: dict[str, Any], letter: str) -> tuple[list[int], dict[str, dict[int, dict[str, list[float]]]]]:
    """Sizes, and the cells as kind, size, rule: from keys such as "n=8, chain"."""
    kinds: dict[str, dict[int, dict[str, list[float]]]] = {}
    for key, rules in part.items():
        size, kind = key.removeprefix(f"{letter}=").split(", ", 1)
        kinds.setdefault(kind, {})[int(size)] = rules
    return sorted({size for sizes in kinds.values() for size in sizes}), kinds


def acceptance_table(part: dict[str, Any], letter: str, header: str) -> str:
    """Rows: kind and rule; columns: sizes; `1 + accepted ± standard error (share)`."""
    sizes, kinds = cells_of(part, letter)
    rows = []
    for kind, by_size in kinds.items():
        names = list(dict.fromkeys(name for rules in by_size.values() for name in rules))
        for name in (n for n in names if n not in (OPTIMUM, BOUND)):
            label = name if RULES[name].is_lossless else f"*{name}* (lossy)"
            rows.append([kind, label, *(_cell(by_size.get(size, {}), name) for size in sizes)])
        for name in (n for n in names if n in (OPTIMUM, BOUND)):
            rows.append([kind, f"**{name}**", *(_cell(by_size.get(size, {}), name) for size in sizes)])
    return markdown_table([header, "rule", *(f"{letter} = {size}" for size in sizes)], rows)


def _cell(rules: dict[str, list[float]], name: str) -> str:
    if name not in rules:
        return ""
    text = f"{1 + fmean(rules[name]):.3f} ± {standard_error(rules[name]):.3f}"
    most = rules.get(OPTIMUM) or rules.get(BOUND)
    if most is None or name in (OPTIMUM, BOUND) or not RULES[name].is_lossless:
        return text
    return f"{text} ({100 * fmean(rules[name]) / fmean(most):.0f} %)"


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
    sizes, kinds = cells_of(part, "n")
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
            case.removeprefix("trees, "),
            str(size),
            f"{name} of {f.num_choices}" if name == "best" else name,
            " / ".join(f"{kind}: {rule}" for kind, rule in f.choices),
            f"{f.length:.2f}",
            f"{f.reference_length:.2f}",
            f.tokens.text(),
            f.accepted.text(),
        ]
        for case, part in results.items()
        if case.startswith("trees, ")
        for (size, name), f in factors(part, _texts(results, case)).items()
    ]
    header = ["distributions", "nodes", "", "sampled tree: rule", "length", "deterministic tree, target walk"]
    return markdown_table([*header, "factor, tokens per pass", "factor, accepted draft tokens"], rows)


def entropy_table(results: dict[str, Any]) -> str:
    """The default's factor for low, middle and high entropy of the target: contexts in thirds by entropy."""
    rows, header = [], ["distributions", "target", "contexts", "entropy, nats", "sum min(P, q)"]
    for case in (case for case in results if case.startswith("trees, ")):
        sizes, kinds = cells_of(results[case], "n")
        about = {key: np.asarray(values) for key, values in results[f"contexts, {case}"].items()}
        thirds = np.array_split(np.argsort(about["entropy"], kind="stable"), 3)
        for name, third in zip(("sure", "between", "unsure"), thirds, strict=True):
            row = [case.removeprefix("trees, "), name, str(len(third))]
            row += [f"{about[key][third].mean():.2f}" for key in ("entropy", "overlap")]
            for size in sizes:
                above = np.asarray(kinds[DEFAULT[0]][size][DEFAULT[1]])[third]
                below = np.asarray(kinds[DETERMINISTIC][size]["target_walk"])[third]
                row.append(quotient(above, below, about["text"][third].tolist()).text())
            rows.append(row)
        header = [*header[:5], *(f"n = {size}" for size in sizes)]
    return markdown_table(header, rows)


def _texts(results: dict[str, Any], case: str) -> list[int]:
    return results[f"contexts, {case}"]["text"]


def report(data: dict[str, Any]) -> str:
    results = data["results"]
    lines = ["# Verification rules: acceptance, share of the optimum", ""]
    for case, found in results.items():
        if case.startswith("contexts, node, "):
            lines += [
                f"Draft and target, {case.removeprefix('contexts, node, ')}, {len(found['text'])} positions: mean sum "
                f"min(P, q) {fmean(found['overlap']):.3f}, same most likely token {fmean(found['same_top']):.3f}.",
                "",
            ]
    if any(case.startswith("trees, ") for case in results):
        lines += ["## Sampled trees against the deterministic tree", "", _FACTOR_TEXT, "", factor_table(results)]
        lines += [_THIRDS_TEXT, "", entropy_table(results)]
    for prefix, letter, header, about in (
        ("node, ", "k", "children", _NODE_TEXT),
        ("trees, ", "n", "tree", _TREE_TEXT),
    ):
        for case, part in results.items():
            if case.startswith(prefix):
                count = max(len(values) for rules in part.values() for values in rules.values())
                title = f"## {prefix.removesuffix(', ').capitalize()}: {case.removeprefix(prefix)}, {count} contexts"
                lines += [title, "", about, ""]
                lines += [acceptance_table(part, letter, header)]
    for part, run in data["runs"].items():
        sizes = ("positions", "contexts", "draws", "bound_paths", "new_tokens", "seed")
        sizes = ", ".join(f"{name.replace('_', ' ')} {run[name]}" for name in sizes)
        measured = f"{run['seconds']} s of this call, load {run['load_average']} to {run['load_average_after']}"
        load = run.get("note") or measured
        lines += [f"Part `{part}`: {load}, {sizes}. {settings_lines(run)}"]
    return "\n".join(lines) + "\n"


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
_NODE_TEXT = (
    "Mean acceptance length 1 + Pr(a child is accepted) ± standard error over positions; in brackets the share of the "
    "optimum, accepted over the most that any lossless rule accepts of such children."
)
_TREE_TEXT = (
    "Mean acceptance length ± standard error over contexts, all rules on the same trees; n counts the root. In "
    "brackets the share of the whole-tree bound in closed form, where there is one: the bound is not always attained, "
    "and is itself estimated from paths sampled from the target."
)


def draw(data: dict[str, Any], path: Path) -> Figure | None:
    """A column of plots for every case: acceptance at one node, and of whole trees."""
    cases = [case.removeprefix("node, ") for case in data["results"] if case.startswith("node, ")]
    cases = [case for case in cases if f"trees, {case}" in data["results"]]
    if not cases:
        return None
    figure = Figure(figsize=(4.2 * len(cases), 8), dpi=130, facecolor="white")
    axes = figure.subplots(2, len(cases), squeeze=False, sharey="row")
    for column, case in enumerate(cases):
        _draw_nodes(axes[0][column], data["results"][f"node, {case}"], case)
        _draw_trees(axes[1][column], data["results"][f"trees, {case}"])
    axes[0][0].set_ylabel("1 + accepted, one node", color=GREY)
    axes[1][0].set_ylabel("1 + accepted, whole tree", color=GREY)
    axes[0][0].legend(fontsize=7, frameon=False)
    axes[1][0].legend(fontsize=7, frameon=False)
    headed(figure, "Acceptance of lossless rules")
    figure.savefig(path)
    return figure


_NODE_LINES = (
    ("selected", "target_walk", REFERENCE, "-"),
    ("i.i.d.", "recursive", NEXT_EDGE, "-"),
    ("i.i.d.", "k_seq", NEXT_EDGE, ":"),
    ("i.i.d.", OPTIMUM, NEXT_EDGE, "--"),
    ("without replacement", "recursive", ACCEPTED, "-"),
    ("without replacement", OPTIMUM, ACCEPTED, "--"),
)
_TREE_LINES = (
    (DETERMINISTIC, "target_walk", REFERENCE, "-"),
    ("chain", "block", INK, "-"),
    ("binary, without replacement", "traversal", NEXT_EDGE, "-"),
    ("by rank, without replacement", "traversal", NEXT_EDGE, ":"),
    ("stochastic beam", "traversal", GREY, "-."),
    ("dyspec", "traversal", GREY, ":"),
    (*DEFAULT, ACCEPTED, "-"),
)


def _draw_nodes(axes: Axes, part: dict[str, Any], title: str) -> None:
    _draw_lines(axes, *cells_of(part, "k"), _NODE_LINES)
    plain_axes(axes, title, "children", size=8)


def _draw_trees(axes: Axes, part: dict[str, Any]) -> None:
    _draw_lines(axes, *cells_of(part, "n"), _TREE_LINES)
    plain_axes(axes, label="nodes, root included", size=8)


def _draw_lines(
    axes: Axes,
    sizes: list[int],
    kinds: dict[str, dict[int, dict[str, list[float]]]],
    lines: Sequence[tuple[str, str, str, str]],
) -> None:
    measured = (line for line in lines if line[0] in kinds)
    for kind, name, colour, style in measured:
        values = [kinds[kind][size][name] for size in sizes]
        lengths, errors = [1 + fmean(v) for v in values], [standard_error(v) for v in values]
        axes.errorbar(sizes, lengths, errors, color=colour, linestyle=style, capsize=2, label=f"{kind}: {name}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.grid(color="#e6eaed", linewidth=0.8)
