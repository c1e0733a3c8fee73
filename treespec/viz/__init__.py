"""Pictures: a token tree with its accepted path, a comparison of decoding methods, a training run.

Needs the extra `plots`. Figures are built without pyplot, so nothing global changes and no window opens.
"""

from treespec.viz.plots import Measured, plot_comparison, plot_training
from treespec.viz.trees import ACCEPTED, GREY, INK, NEXT_EDGE, REFERENCE, draw_tree

__all__ = [
    "ACCEPTED",
    "GREY",
    "INK",
    "NEXT_EDGE",
    "REFERENCE",
    "Measured",
    "draw_tree",
    "plot_comparison",
    "plot_training",
]
