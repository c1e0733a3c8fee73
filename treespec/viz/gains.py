"""The picture of a study: paired differences with their intervals."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from treespec.errors import TreespecError
from treespec.viz.trees import ACCEPTED, GREY, INK, NEXT_EDGE, REFERENCE, headed, plain_axes, saved

COLOURS = (REFERENCE, NEXT_EDGE, ACCEPTED, INK, "#7b5ea7", "#b04a5a", "#3d7fb5", "#8a8a3d", GREY)


class Gain(NamedTuple):
    """A difference to the baseline with its interval; `group` has a colour, `label` a line. No interval: the baseline
    itself."""

    label: str
    group: str
    value: float
    low: float | None = None
    high: float | None = None


def plot_gains(
    panels: Mapping[str, Sequence[Gain]],
    path: str | PathLike[str] | None = None,
    title: str = "",
    quantity: str = "gain in tokens per pass, paired",
    zero: float = 0.0,
) -> Figure:
    """Differences as dots with their intervals: a plot per panel, a line per label, a colour per group.

    `zero` is where the baseline is: 0 of differences, 1 of ratios. Raises `TreespecError`: nothing to draw.
    """
    gains = [gain for panel in panels.values() for gain in panel]
    if not gains:
        raise TreespecError("plot_gains needs at least one cell")
    labels, groups = list(dict.fromkeys(g.label for g in gains)), list(dict.fromkeys(g.group for g in gains))
    height = 1.5 + 0.19 * len(labels) * (1 + len(groups) / 2)
    figure = Figure(figsize=(3.2 + 3.6 * len(panels), height), dpi=130, facecolor="white")
    plots = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for plot, (name, panel) in zip(plots, panels.items(), strict=True):
        for gain in panel:
            mine = [group for group in groups if any((g.label, g.group) == (gain.label, group) for g in gains)]
            shift = (mine.index(gain.group) - (len(mine) - 1) / 2) * 0.8 / len(groups)
            colour = COLOURS[groups.index(gain.group) % len(COLOURS)]
            _draw_gain(plot, gain, labels.index(gain.label) + shift, colour)
        plot.axvline(zero, color=GREY, linewidth=0.8, linestyle=":")
        plain_axes(plot, name, quantity, size=8)
        plot.grid(axis="x", color="#e6eaed", linewidth=0.8)
    plots[0].set_yticks(range(len(labels)), labels)
    plots[0].invert_yaxis()
    for number, group in enumerate(groups if len(groups) > 1 else []):
        plots[-1].plot([], [], "o-", color=COLOURS[number % len(COLOURS)], label=group, markersize=3.5)
    if len(groups) > 1:
        plots[-1].legend(fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(1, 0))
    headed(figure, textwrap.fill(title, int(10 * figure.get_figwidth())))
    return saved(figure, path)


def _draw_gain(plot: Axes, gain: Gain, y: float, colour: str) -> None:
    if gain.low is None or gain.high is None:
        plot.plot([gain.value], [y], "D", color=colour, markersize=5)
        return
    plot.plot([gain.low, gain.high], [y, y], color=colour, linewidth=1.6, alpha=0.6)
    plot.plot([gain.value], [y], "o", color=colour, markersize=3.5)
