"""The matrix as a table and a picture: what became of the cells with each pair of names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.common.settings import markdown_table, settings_lines
from benchmarks.matrix.cells import DIFFERENT, IDENTICAL, PACKAGE, REFUSED, TIE, Cell, Outcome

Outcomes = Mapping[Cell, Outcome]
WORDS = (IDENTICAL, TIE, REFUSED, PACKAGE, DIFFERENT)
COLOURS = {IDENTICAL: "#1b9e77", TIE: "#a6d854", REFUSED: "#7570b3", PACKAGE: "#d9d9d9", DIFFERENT: "#d7191c"}


def report(outcomes: Outcomes, data: dict[str, Any]) -> str:
    """Markdown: totals, one table per axis, every refusal's message, how it was run."""
    total = Counter(outcome.word for outcome in outcomes.values())
    parts = [
        f"# {len(outcomes):,} combinations of model, weights, adapter, prompt and constraint\n",
        "Tiny random models, real packages, greedy, 12 new tokens by trees of 8 nodes, compared with plain `generate`. "
        "An own tie: plain's two best scores are closer than twice what plain makes of embeddings changed by rounding. "
        "Fails plainly: the package or plain `generate` refuses the combination without treespec.\n",
        markdown_table(list(WORDS), [[str(total[word]) for word in WORDS]]),
    ]
    for axis in Cell._fields:
        counts: dict[str, Counter[str]] = {}
        for cell, outcome in outcomes.items():
            counts.setdefault(getattr(cell, axis), Counter())[outcome.word] += 1
        rows = [[name, *(str(found[word]) for word in WORDS)] for name, found in counts.items()]
        parts.append(markdown_table([axis, *WORDS], rows))
    for word in (DIFFERENT, REFUSED, PACKAGE):
        details = Counter(outcome.detail for outcome in outcomes.values() if outcome.word == word)
        lines = [
            f"- {count} times: {detail}\n" for detail, count in details.most_common(None if word != PACKAGE else 12)
        ]
        parts.append(f"{word.capitalize()}:\n\n{''.join(lines) or 'None.'}\n")
    parts.append(
        f"Load average {data['load_average']} before, {data['load_average_after']} after. {settings_lines(data)}"
    )
    return "\n".join(parts)


def picture(outcomes: Outcomes, path: Path) -> None:
    """Every pair of names: a difference if any of its cells has one, else a tie, an identity, a refusal."""
    names = [(axis, name) for axis in Cell._fields for name in dict.fromkeys(getattr(cell, axis) for cell in outcomes)]
    worst: dict[tuple[int, int], int] = {}
    ranks = {word: rank for rank, word in enumerate((PACKAGE, REFUSED, IDENTICAL, TIE, DIFFERENT))}
    index = {name: number for number, name in enumerate(names)}
    for cell, outcome in outcomes.items():
        mine = [index[axis, getattr(cell, axis)] for axis in Cell._fields]
        for pair in ((a, b) for a in mine for b in mine if a != b):
            worst[pair] = max(worst.get(pair, 0), ranks[outcome.word])
    words = list(ranks)
    grid = [[worst.get((a, b), -1) + 1 for b in range(len(names))] for a in range(len(names))]
    figure = Figure(figsize=(11, 11), layout="constrained")
    axes = figure.subplots()
    colours = ListedColormap(["white", *(COLOURS[word] for word in words)])
    axes.imshow(grid, cmap=colours, vmin=0, vmax=len(words))
    labels = [name for _, name in names]
    axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), labels, fontsize=7)
    for number in range(1, len(names)):
        if names[number][0] != names[number - 1][0]:
            axes.axhline(number - 0.5, color="black", linewidth=1)
            axes.axvline(number - 0.5, color="black", linewidth=1)
    axes.set_title("What becomes of a pair of names: different, else own tie, identical, refused, fails plainly")
    patches = [Patch(color=COLOURS[word], label=word) for word in words]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(0, -0.27), ncols=len(words), frameon=False)
    figure.savefig(path, dpi=130)
