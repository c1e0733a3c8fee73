"""What the tables and pictures of `tree_vs_chain.py` have in common."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from benchmarks.common.settings import settings_lines
from treespec.viz import INK


def plain_axes(axes: Axes) -> None:
    """A light grid and no frame above and to the right."""
    axes.grid(color="#e6eaed", linewidth=0.8)
    axes.tick_params(length=0, labelsize=7.5, colors=INK)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def run_text(run: dict[str, Any]) -> str:
    """A call's settings, time and load."""
    load = f"load {run['load_average']} before, {run['load_average_after']} after"
    return f"{run['seconds']} s in this call, {load}, seed {run['seed']}. {settings_lines(run)}"
