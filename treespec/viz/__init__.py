"""Pictures: a token tree with its accepted path, its mask, one decision, a comparison of decoding methods, a study, a
training run; a trace as a page.

Pictures need the extra `plots`, which is imported when the first one is asked for. Figures are built without pyplot, so
nothing global changes and no window opens.
"""

from typing import TYPE_CHECKING

from treespec.registry import lazy
from treespec.viz.viewer import write_page

if TYPE_CHECKING:
    from treespec.viz.explain import draw_decision, draw_mask
    from treespec.viz.plots import Gain, Measured, plot_comparison, plot_gains, plot_training
    from treespec.viz.trees import ACCEPTED, GREY, INK, NEXT_EDGE, REFERENCE, draw_tree

__all__ = [
    "ACCEPTED",
    "GREY",
    "INK",
    "NEXT_EDGE",
    "REFERENCE",
    "Gain",
    "Measured",
    "draw_decision",
    "draw_mask",
    "draw_tree",
    "plot_comparison",
    "plot_gains",
    "plot_training",
    "write_page",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "explain": "draw_decision draw_mask",
        "plots": "Gain Measured plot_comparison plot_gains plot_training",
        "trees": "ACCEPTED GREY INK NEXT_EDGE REFERENCE draw_tree",
    },
)
