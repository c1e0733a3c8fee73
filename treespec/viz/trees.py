"""A picture of a token tree with its accepted path; the colours of all pictures, and how they are saved."""

from collections.abc import Callable, Sequence
from functools import cache
from os import PathLike
from typing import Any

import networkx
from matplotlib import font_manager, ft2font
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from treespec.errors import TreespecError
from treespec.tree import TokenTree, Verdict

ACCEPTED = "#0b7a75"
"""Accepted nodes."""
NEXT_EDGE = "#d9822b"
"""The edge of the next token."""
INK = "#22303c"
"""Text."""
GREY = "#6b7885"
"""Captions."""
REFERENCE = "#8795a1"
"""The method that others are compared with."""
REJECTED, NEXT, FAINT = "#eef2f5", "#fdf0e1", "#c3ccd4"
MONOSPACE = "DejaVu Sans Mono"
ROW_HEIGHT, BOX_HEIGHT, CHARACTER_WIDTH, COLUMN_GAP, MARGIN, HEADING = 0.4, 0.27, 0.077, 0.55, 0.3, 0.75
CAPTION_CHARACTER = 0.056
MAX_LABEL = 14
FILLS = {"accepted": ACCEPTED, "rejected": REJECTED, "next": NEXT}
EDGES = {"accepted": ACCEPTED, "rejected": FAINT, "next": NEXT_EDGE}


def draw_tree(
    tree: TokenTree,
    verdict: Verdict | None = None,
    labels: Callable[[int], str] | None = None,
    probs: Sequence[float] | None = None,
    path: str | PathLike[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw a token tree from left to right, one column per depth, siblings in verification order from the top.

    Accepted nodes are filled; the next token is a dashed box after the last. Edges are wider to more probable children.

    Args:
        tree: legible up to about 32 nodes.
        verdict: None shows the drafted tree alone.
        labels: token id to text, e.g. `lambda token: tokenizer.decode([token])`; None shows the id.
        probs: N numbers in [0, 1], e.g. the target's probability of each node's token after its parent; the root's is
            not shown. A further number is the next token's.
        path: the file to write; its suffix names the format.

    Raises `TreespecError`: another number of probabilities than nodes, or a verdict that is not of this tree.
    """
    _check(tree, verdict, probs)
    graph = _graph(tree, verdict, labels or str, probs)
    _lay_out(graph)
    boxes = [data for _, data in graph.nodes(data=True)]
    caption = _caption(tree, verdict, probs)
    longest = max(box["x"] + box["width"] for box in boxes)
    width = max(6.0, MARGIN + longest, 2 * MARGIN + CAPTION_CHARACTER * len(caption))
    height = max(box["y"] for box in boxes) + ROW_HEIGHT / 2 + MARGIN
    figure = Figure(figsize=(width, height), dpi=160, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for edge in graph.edges:
        _draw_edge(axes, graph, *edge)
    for box in boxes:
        _draw_box(axes, box)
    axes.text(MARGIN, 0.3, title or "Token tree", fontsize=11, color=INK, weight="bold", va="center", parse_math=False)
    axes.text(MARGIN, 0.53, caption, fontsize=7.5, color=GREY, va="center")
    return saved(figure, path)


def _check(tree: TokenTree, verdict: Verdict | None, probs: Sequence[float] | None) -> None:
    if probs is not None and len(probs) not in (tree.num_nodes, tree.num_nodes + 1):
        raise TreespecError(f"probs must hold one number per node, {tree.num_nodes}, got {len(probs)}")
    if verdict is None:
        return
    last = verdict.path[-1] if verdict.path else -1
    if not 0 <= last < tree.num_nodes or tuple(verdict.path) != tree.path_to(last):
        raise TreespecError(f"the verdict's path {verdict.path} is not a path of this tree: it belongs to another tree")


def _graph(
    tree: TokenTree, verdict: Verdict | None, label: Callable[[int], str], probs: Sequence[float] | None
) -> networkx.DiGraph:
    """The tree with the next token as one more child; nodes carry text, kind and prob."""
    graph = tree.to_networkx()
    for node, data in graph.nodes(data=True):
        data["kind"] = "accepted" if verdict and node in verdict.path else "rejected"
    if verdict:
        graph.add_node(tree.num_nodes, token=verdict.next_token, depth=len(verdict.path), kind="next")
        graph.add_edge(verdict.path[-1], tree.num_nodes)
    for node, data in graph.nodes(data=True):
        data["text"] = printable(label(data["token"]))
        data["prob"] = probs[node] if probs is not None and 0 < node < len(probs) else None
        characters = len(data["text"]) + (5 if data["prob"] is not None else 0)
        data["width"] = CHARACTER_WIDTH * max(characters, 2) + 0.2
    return graph


def _lay_out(graph: networkx.DiGraph) -> None:
    """Set x and y of every node in inches: columns by depth, one row per leaf, parents between their children."""
    depths = dict(graph.nodes(data="depth"))
    starts = [MARGIN]
    for depth in range(max(depths.values())):
        starts.append(starts[-1] + COLUMN_GAP + max(graph.nodes[n]["width"] for n in graph if depths[n] == depth))
    num_leaves = 0
    for node in networkx.dfs_postorder_nodes(graph, 0):
        data = graph.nodes[node]
        children = list(graph.successors(node))
        data["x"] = starts[data["depth"]]
        if children:
            data["y"] = (graph.nodes[children[0]]["y"] + graph.nodes[children[-1]]["y"]) / 2
        else:
            data["y"] = HEADING + ROW_HEIGHT * (num_leaves + 0.5)
            num_leaves += 1


def _draw_edge(axes: Axes, graph: networkx.DiGraph, parent: int, child: int) -> None:
    start, end = graph.nodes[parent], graph.nodes[child]
    x0 = start["x"] + start["width"]
    x1 = end["x"]
    y0 = start["y"]
    y1 = end["y"]
    middle = (x0 + x1) / 2
    curve = Path([(x0, y0), (middle, y0), (middle, y1), (x1, y1)], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    width = 1.2 if end["prob"] is None else 0.7 + 3.0 * end["prob"]
    dashes = (0, (2.0, 1.2)) if end["kind"] == "next" else "solid"
    style = {"edgecolor": EDGES[end["kind"]], "linewidth": width, "linestyle": dashes}
    axes.add_patch(PathPatch(curve, fill=False, zorder=2 if end["kind"] != "rejected" else 1, **style))


def _draw_box(axes: Axes, data: dict[str, Any]) -> None:
    x, y, kind = data["x"], data["y"], data["kind"]
    dashes = (0, (2.5, 1.5)) if kind == "next" else "solid"
    corner = (x + 0.05, y - BOX_HEIGHT / 2 + 0.05)
    size = (data["width"] - 0.1, BOX_HEIGHT - 0.1)
    colors: dict[str, Any] = {"facecolor": FILLS[kind], "edgecolor": EDGES[kind]}
    shape = "round,pad=0.05,rounding_size=0.07"
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=shape, linestyle=dashes, linewidth=1.0, zorder=3, **colors))
    ink = "white" if kind == "accepted" else INK
    style = {"va": "center_baseline", "color": ink, "zorder": 4, "parse_math": False}
    axes.text(x + 0.1, y, data["text"], ha="left", family=MONOSPACE, fontsize=9, **style)
    if data["prob"] is not None:
        end = x + data["width"] - 0.09
        axes.text(end, y, _short(data["prob"]), ha="right", fontsize=7, alpha=0.8, **style)


def _caption(tree: TokenTree, verdict: Verdict | None, probs: Sequence[float] | None) -> str:
    parts = [f"{tree.num_nodes} nodes"]
    if verdict:
        kind = "bonus" if verdict.is_bonus else "residual"
        parts += [f"filled: {verdict.num_accepted} accepted draft tokens after the root", f"dashed: the {kind} token"]
    if probs is not None:
        parts.append("numbers: probability after the parent")
    return "  ·  ".join(parts)


def _short(prob: float) -> str:
    """Two decimals without the leading zero: .07; <.01 for what would be rounded to zero."""
    if 0 < prob < 0.005:
        return "<.01"
    return f"{prob:.2f}".lstrip("0") if prob < 0.995 else "1.0"


def printable(text: str) -> str:
    """One short line: outer spaces and line breaks are visible, characters that the font lacks are replaced."""
    core = text.strip(" ")
    left = len(text) - len(text.lstrip(" ")) if core else len(text)
    right = len(text) - left - len(core)
    shown = "␣" * left + core.replace("\n", "⏎").replace("\t", "⇥") + "␣" * right
    known = _known_characters()
    shown = "".join(character if ord(character) in known else "□" for character in shown)
    return shown if len(shown) <= MAX_LABEL else shown[: MAX_LABEL - 1] + "…"


@cache
def _known_characters() -> frozenset[int]:
    return frozenset(ft2font.FT2Font(font_manager.findfont(MONOSPACE)).get_charmap())


def plain_axes(axes: Axes, title: str = "", label: str = "", size: float = 8.5) -> None:
    """No ticks, no frame above and to the right; a title and a label of the numbers in grey."""
    axes.set_title(title, fontsize=9, color=GREY, loc="left")
    axes.set_xlabel(label, fontsize=8, color=GREY)
    axes.tick_params(length=0, labelsize=size, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def headed(figure: Figure, title: str) -> None:
    """A heading at the left, with room below it."""
    figure.suptitle(title, fontsize=11, color=INK, weight="bold", x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.98))


def saved(figure: Figure, path: str | PathLike[str] | None) -> Figure:
    if path is not None:
        figure.savefig(path)
    return figure
