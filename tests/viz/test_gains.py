"""The picture of a study."""

import pytest

from treespec.errors import TreespecError
from treespec.viz import Gain, plot_gains


def test_a_plot_per_panel_and_a_colour_per_group(tmp_path):
    panels = {
        "T=0": [Gain("chain", "auto", 0.0), Gain("tree", "auto", 0.5, 0.2, 0.8), Gain("tree", "block", 0.1, -0.2, 0.4)],
        "T=1": [Gain("chain", "auto", 0.0), Gain("tree", "auto", 0.3, 0.1, 0.5)],
    }
    figure = plot_gains(panels, tmp_path / "a.png", "Study", zero=0.0)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["T=0", "T=1"]
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == ["auto", "block"]
    assert (tmp_path / "a.png").stat().st_size > 5_000
    with pytest.raises(TreespecError, match="at least one cell"):
        plot_gains({})
