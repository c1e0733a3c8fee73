"""Pictures of measurements: a comparison of decoding methods, a training run, a study."""

import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from treespec.errors import TreespecError
from treespec.viz.trees import ACCEPTED, GREY, INK, NEXT_EDGE, REFERENCE, headed, plain_axes, saved

COLOURS = (REFERENCE, NEXT_EDGE, ACCEPTED, INK, "#7b5ea7", "#b04a5a", "#3d7fb5", "#8a8a3d", GREY)


class Measured(NamedTuple):
    """One method's measurements, one number per prompt, in the same order of prompts for all methods."""

    name: str
    ms_per_token: Sequence[float]
    tokens_per_pass: Sequence[float]
    speeds: Sequence[float] | None = None


def plot_comparison(
    methods: Sequence[Measured],
    path: str | PathLike[str] | None = None,
    title: str | None = None,
    note: str | None = None,
) -> Figure:
    """Bars of the medians over prompts with every prompt as a dot: milliseconds per token, tokens per target pass.

    The first method is the reference of the speeds, whose medians over prompts are written; a method's speeds are the
    ratios of the times unless it has its own, for example of paired rounds. `note` is a small line below the plots,
    e.g. machine and load.

    Raises `TreespecError`: no method, one without measurements, or times of unequally many prompts.
    """
    if len({len(m.ms_per_token) for m in methods}) > 1:
        raise TreespecError("plot_comparison needs every method's times of the same prompts")
    if not methods or not all(len(m.ms_per_token) and len(m.tokens_per_pass) for m in methods):
        raise TreespecError("plot_comparison needs at least one method, each with at least one measurement")
    height = 1.6 + 0.55 * len(methods)
    figure = Figure(figsize=(10, height), dpi=160, facecolor="white")
    left, right = figure.subplots(1, 2, sharey=True)
    speeds = [f"{median(m.ms_per_token):.1f} ms  ({_speed(methods[0], m):.2f}×)" for m in methods]
    _draw_bars(left, [m.ms_per_token for m in methods], speeds)
    _draw_bars(right, [m.tokens_per_pass for m in methods], [f"{median(m.tokens_per_pass):.2f}" for m in methods])
    left.set_yticks(range(len(methods)), [m.name for m in methods])
    left.invert_yaxis()
    plain_axes(left, "milliseconds per token (less is better)", size=9)
    plain_axes(right, "tokens per target pass (more is better)", size=9)
    heading = title or "Decoding methods"
    caption = "Bars: median over prompts; dots: single prompts. " + (note or "")
    figure.text(0.015, 1 - 0.28 / height, heading, fontsize=12.5, color=INK, weight="bold", va="center")
    figure.text(0.015, 0.2 / height, caption, fontsize=7.5, color=GREY, va="center")
    figure.tight_layout(rect=(0.0, 0.32 / height, 1.0, 1 - 0.45 / height), w_pad=2)
    return saved(figure, path)


def plot_training(
    log: Sequence[Mapping[str, Any]],
    acceptance: Sequence[Sequence[float]],
    path: str | PathLike[str] | None = None,
    title: str | None = None,
) -> Figure:
    """A training run: the loss, the held-out overlap with the target's distributions, and acceptance by depth and rank.

    The log's entries have "tokens" and "loss" or "overlap"; `acceptance` is by depth and rank, of rows of any length.
    """
    figure = Figure(figsize=(11, 3.4), dpi=160, facecolor="white")
    left, middle, right = figure.subplots(1, 3)
    for axes, name, color in ((left, "loss", INK), (middle, "overlap", ACCEPTED)):
        lines = [line for line in log if name in line]
        axes.plot([line["tokens"] for line in lines], [line[name] for line in lines], color=color, linewidth=1.2)
    bottoms = [0.0] * len(acceptance)
    for rank in range(max(map(len, acceptance), default=0)):
        heights = [row[rank] if rank < len(row) else 0.0 for row in acceptance]
        shade = max(1 - 0.2 * rank, 0.15)
        right.bar(range(1, len(heights) + 1), heights, bottom=bottoms, color=ACCEPTED, alpha=shade, edgecolor="white")
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    right.set(ylim=(0, 1), xticks=range(1, len(acceptance) + 1))
    titles = ("training loss", "held-out mass shared with the target", "held-out acceptance")
    labels = ("tokens trained on", "tokens trained on", "depth; ranks from the bottom")
    for axes, heading, label in zip((left, middle, right), titles, labels, strict=True):
        plain_axes(axes, heading, label, size=7)
    headed(figure, title or "Training")
    return saved(figure, path)


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


def _speed(reference: Measured, method: Measured) -> float:
    if method.speeds is not None:
        return median(method.speeds)
    return median(a / b for a, b in zip(reference.ms_per_token, method.ms_per_token, strict=True))


def _draw_bars(axes: Axes, values: Sequence[Sequence[float]], texts: Sequence[str]) -> None:
    for row, (numbers, text) in enumerate(zip(values, texts, strict=True)):
        axes.barh(row, median(numbers), height=0.52, color=REFERENCE if row == 0 else ACCEPTED, alpha=0.85, zorder=2)
        axes.scatter(numbers, [row] * len(numbers), s=9, color=INK, alpha=0.45, linewidths=0, zorder=3)
        axes.annotate(text, (max(numbers), row), (7, 0), textcoords="offset points", va="center", fontsize=9, color=INK)
    axes.set_xlim(0, 1.34 * max(max(numbers) for numbers in values))
    axes.grid(axis="x", color="#e6eaed", linewidth=0.8, zorder=0)
    axes.spines[:].set_visible(False)


def _draw_gain(plot: Axes, gain: Gain, y: float, colour: str) -> None:
    if gain.low is None or gain.high is None:
        plot.plot([gain.value], [y], "D", color=colour, markersize=5)
        return
    plot.plot([gain.low, gain.high], [y, y], color=colour, linewidth=1.6, alpha=0.6)
    plot.plot([gain.value], [y], "o", color=colour, markersize=3.5)
