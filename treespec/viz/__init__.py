"""Pictures: a token tree with its accepted path, its mask, one decision, a comparison of decoding methods, a study, a
training run; a trace as a page.

Pictures need the extra `plots`, which is imported when the first one is asked for. Figures are built without pyplot, so
nothing global changes and no window opens.
"""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.viz.explain import draw_decision as draw_decision
    from treespec.viz.explain import draw_mask as draw_mask
    from treespec.viz.plots import Gain as Gain
    from treespec.viz.plots import Measured as Measured
    from treespec.viz.plots import plot_comparison as plot_comparison
    from treespec.viz.plots import plot_gains as plot_gains
    from treespec.viz.plots import plot_training as plot_training
    from treespec.viz.trees import ACCEPTED as ACCEPTED
    from treespec.viz.trees import GREY as GREY
    from treespec.viz.trees import INK as INK
    from treespec.viz.trees import NEXT_EDGE as NEXT_EDGE
    from treespec.viz.trees import REFERENCE as REFERENCE
    from treespec.viz.trees import draw_tree as draw_tree
    from treespec.viz.viewer import write_page as write_page

__getattr__, __dir__, __all__ = lazy(__name__)
