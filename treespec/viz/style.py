"""Colours, and how pictures are saved."""

from os import PathLike

from matplotlib.figure import Figure

ACCEPTED, REJECTED, NEXT, INK, GREY, FAINT = "#0b7a75", "#eef2f5", "#fdf0e1", "#22303c", "#6b7885", "#c3ccd4"
NEXT_EDGE, REFERENCE = "#d9822b", "#8795a1"


def saved(figure: Figure, path: str | PathLike[str] | None) -> Figure:
    """The figure, saved if a path is given; its suffix names the format."""
    if path is not None:
        figure.savefig(path)
    return figure
