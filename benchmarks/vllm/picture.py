"""A picture of segments: a tree, how it is cut, and the blocks that each segment reads.

    python -m benchmarks.vllm.picture

It is drawn from what `plan_segments` plans for the tree below, in blocks of four tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from treespec.vllm.segments import SegmentPlan, StepTrees, plan_segments

OUT = Path("benchmarks/results/vllm/segments.png")
PARENTS = [-1, 0, 1, 2, 1, 4, 0, 6]
TOKENS = ["the", "tree", "is", "tall", "stands", "by", "old", "oak"]
POSITION, SIZE = 6, 4
"""Six tokens stand before the root, in blocks of four."""
COLOURS = ["#4C72B0", "#DD8452", "#55A868"]
COPIED, WRITTEN_AGAIN = "#C8C8C8", "#E8E4C9"


def plan() -> tuple[SegmentPlan, list[int]]:
    """The plan, and the depths of the nodes."""
    depths = [0]
    for parent in PARENTS[1:]:
        depths.append(depths[parent] + 1)
    trees = StepTrees(
        np.array([PARENTS]), np.array([depths]), np.zeros(1, int), np.zeros(1, int), np.array([POSITION]), np.array([7])
    )
    table = np.arange(8).reshape(1, 8)
    return plan_segments(trees, table, SIZE, np.arange(20, 40))[0], depths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    found, depths = plan()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), width_ratios=[1, 1.9])
    segments = np.searchsorted(found.first_tokens, np.arange(len(TOKENS)), side="right") - 1
    draw_tree(left, depths, segments)
    draw_blocks(right, found, depths, segments)
    figure.tight_layout()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=130)
    print(args.out)


def draw_tree(axes: Axes, depths: list[int], segments: np.ndarray) -> None:
    """Nodes from left to right by depth, one line per segment."""
    for node, parent in enumerate(PARENTS):
        x, y = depths[node], -segments[node]
        if parent >= 0:
            axes.plot([depths[parent], x], [-segments[parent], y], color="grey", zorder=1)
        axes.scatter([x], [y], s=900, color=COLOURS[segments[node]], zorder=2)
        axes.annotate(TOKENS[node], (x, y), ha="center", va="center", color="white", fontsize=8)
    axes.set_title("a tree, depth first", fontsize=10)
    axes.set_xlim(-0.5, max(depths) + 0.5)
    axes.set_ylim(-segments.max() - 0.6, 0.6)
    axes.axis("off")


def draw_blocks(axes: Axes, found: SegmentPlan, depths: list[int], segments: np.ndarray) -> None:
    """One line of blocks per segment; what stands in each slot."""
    first_copied = POSITION // SIZE * SIZE
    for segment, length in enumerate(found.lengths.tolist()):
        path = path_of(int(np.flatnonzero(segments == segment)[-1]))
        for position in range(-(-length // SIZE) * SIZE):
            text, colour = "", "white"
            if position < POSITION:
                text, colour = str(position), COPIED if segment and position >= first_copied else "#F2F2F2"
            elif position - POSITION < len(path):
                node = path[position - POSITION]
                text, colour = TOKENS[node], COLOURS[segment] if segments[node] == segment else WRITTEN_AGAIN
            axes.add_patch(Rectangle((position, -segment - 0.3), 1, 0.6, facecolor=colour, edgecolor="#999999", lw=0.5))
            ink = "white" if colour in COLOURS else "black"
            axes.annotate(text, (position + 0.5, -segment), ha="center", va="center", fontsize=7, color=ink)
        for column in range(-(-length // SIZE)):
            scratch = {int(c): int(b) for s, c, b in found.table.T if s == segment}
            is_scratch = column in scratch
            axes.add_patch(
                Rectangle(
                    (column * SIZE, -segment - 0.3), SIZE, 0.6, fill=False, edgecolor="black", lw=2 if is_scratch else 1
                )
            )
            name = f"scratch block {scratch[column]}" if is_scratch else f"block {column}"
            axes.annotate(name, (column * SIZE + 0.1, -segment + 0.36), fontsize=7)
    legend = [(COPIED, "copied with the root's block"), (WRITTEN_AGAIN, "ancestors, written once more")]
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor="#999999") for colour, _ in legend]
    axes.legend(handles, [name for _, name in legend], loc="lower right", fontsize=7, frameon=False)
    axes.set_title("three sequences of the paged cache", fontsize=10)
    axes.set_xlim(-0.1, 12.1)
    axes.set_ylim(-len(found.lengths) - 0.1, 0.7)
    axes.axis("off")


def path_of(node: int) -> list[int]:
    """Nodes from the root to this one."""
    path = [node]
    while PARENTS[path[-1]] >= 0:
        path.append(PARENTS[path[-1]])
    return path[::-1]


if __name__ == "__main__":
    main()
