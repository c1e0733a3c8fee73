"""Pictures that explain a step: which tokens a node attends, and what one draft token's verification leaves."""

from collections.abc import Callable, Sequence
from os import PathLike

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from treespec.errors import TreespecError
from treespec.tree import TokenTree
from treespec.viz.trees import (
    ACCEPTED,
    FAINT,
    GREY,
    INK,
    MONOSPACE,
    NEXT,
    NEXT_EDGE,
    REJECTED,
    headed,
    plain_axes,
    printable,
    saved,
)

CACHED = "#9fcfca"
CELL, GAP, HEADING, MARGIN = 0.36, 0.12, 1.0, 0.3


def draw_mask(
    tree: TokenTree,
    cached: Sequence[str] = (),
    labels: Callable[[int], str] | None = None,
    path: str | PathLike[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw a tree's attention mask: a row per node, a column per cached token and per node, filled where it attends.

    Args:
        tree: legible up to about 32 nodes.
        cached: the texts of the tokens before the root, oldest first; the last few are enough.
        labels: token id to text; None shows the id.
        path: the file to write; its suffix names the format.
    """
    names = [printable((labels or str)(token)) for token in tree.token_list]
    columns = [*map(printable, cached), *names]
    left = MARGIN + 0.085 * max(map(len, names)) + 0.1
    top = HEADING + 0.085 * max(map(len, columns)) + 0.1
    width = max(6.0, left + CELL * len(columns) + GAP + 1.2)
    height = top + CELL * tree.num_nodes + MARGIN
    figure = Figure(figsize=(width, height), dpi=160, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    text = {"color": INK, "fontfamily": MONOSPACE, "fontsize": 9, "parse_math": False}
    edges = [left + CELL * column + GAP * (column >= len(cached)) for column in range(len(columns))]
    for x, name in zip(edges, columns, strict=True):
        axes.text(x + CELL / 2, top - 0.08, name, rotation=90, ha="center", va="bottom", **text)
    ancestors, end = tree.ancestor_mask().tolist(), left + CELL * len(columns) + GAP + 0.35
    for node, name in enumerate(names):
        y = top + CELL * node
        axes.text(left - 0.1, y + CELL / 2, name, ha="right", va="center", **text)
        colors = [CACHED] * len(cached) + [ACCEPTED if attends else REJECTED for attends in ancestors[node]]
        for x, color in zip(edges, colors, strict=True):
            axes.add_patch(Rectangle((x + 0.02, y + 0.02), CELL - 0.04, CELL - 0.04, facecolor=color))
        axes.text(end, y + CELL / 2, str(len(cached) + tree.depths[node]), ha="center", va="center", **text)
    axes.text(end, top - 0.08, "position", rotation=90, ha="center", va="bottom", color=GREY, fontsize=8)
    axes.text(MARGIN, 0.3, title or "Tree attention", fontsize=11, color=INK, weight="bold", va="center")
    caption = "a row: what this node attends  ·  light: cached tokens, dark: its ancestors and itself"
    axes.text(MARGIN, 0.53, caption, fontsize=7.5, color=GREY, va="center")
    return saved(figure, path)


def draw_decision(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"],
    labels: Sequence[str],
    path: str | PathLike[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw how one sampled token is verified: both distributions with what they share, and the residual distribution.

    The shared mass, sum min(P, q), is the probability that the token is accepted; otherwise the next token is drawn
    from the residual, (P - q)+ normalised (Leviathan et al. 2023). Equal distributions leave no residual.

    Args:
        target_probs: of V tokens, few enough to be read.
        draft_probs: of the same tokens.
        labels: their V texts.
        path: the file to write; its suffix names the format.

    Raises `TreespecError`: not as many labels and draft probabilities as target probabilities.
    """
    if not len(target_probs) == len(draft_probs) == len(labels):
        sizes = len(target_probs), len(draft_probs), len(labels)
        raise TreespecError(f"draw_decision needs as many probabilities of both kinds as labels, got {sizes}")
    shared = torch.minimum(target_probs, draft_probs)
    rest = (target_probs - draft_probs).clip(min=0)
    residual = rest / rest.sum() if rest.sum() > 0 else rest
    figure = Figure(figsize=(9, 3.2), dpi=160, facecolor="white")
    left, right = figure.subplots(1, 2, sharey=True)
    names, spots = [printable(label) for label in labels], range(len(labels))
    outline = {"fill": False, "linewidth": 1.4}
    left.bar(spots, shared, width=0.8, color=ACCEPTED, label=f"both: accepted with {float(shared.sum()):.2f}")
    left.bar(spots, target_probs, width=0.8, edgecolor=INK, label="target", **outline)
    left.bar(spots, draft_probs, width=0.8, edgecolor=NEXT_EDGE, linestyle=(0, (2.5, 1.5)), label="draft", **outline)
    right.bar(spots, residual, width=0.8, color=NEXT, edgecolor=NEXT_EDGE, label="residual")
    plain_axes(left, "a token drawn from the draft")
    plain_axes(right, "after a rejection: what the next token is drawn from")
    for axes in (left, right):
        axes.set_xticks(spots, names, family=MONOSPACE, rotation=45, ha="right", rotation_mode="anchor")
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    headed(figure, title or "One sampled token")
    return saved(figure, path)
