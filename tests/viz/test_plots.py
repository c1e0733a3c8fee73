"""Pictures of measurements: what they show is read back from the figure."""

import pytest
import torch
from matplotlib.text import Text

from treespec import TreespecError
from treespec.viz import Gain, Measured, plot_comparison, plot_gains, plot_training


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_comparison_gives_medians_and_paired_ratios_to_the_first():
    figure = plot_comparison([Measured("plain", [10.0, 30.0, 20.0], [1.0]), Measured("tree", [8.0, 10.0, 12.0], [2.5])])
    assert {"20.0 ms  (1.00×)", "10.0 ms  (1.67×)", "2.50", "plain", "tree"} <= set(texts(figure))
    given = plot_comparison([Measured("plain", [10.0], [1.0]), Measured("tree", [8.0], [2.5], [1.5])])
    assert any("(1.50×)" in text.get_text() for text in given.axes[0].texts)


def test_acceptance_in_training_is_stacked_by_rank():
    log = [{"tokens": 10, "loss": 3.0}, {"tokens": 20, "loss": 2.0}, {"tokens": 20, "overlap": 0.5}]
    loss, overlap, acceptance = plot_training(log, [[0.5, 0.2], [0.25]]).axes
    assert loss.lines[0].get_xydata().tolist() == [[10, 3.0], [20, 2.0]]
    assert overlap.lines[0].get_xydata().tolist() == [[20, 0.5]]
    bars = torch.tensor([[bar.get_center()[0], bar.get_y(), bar.get_height()] for bar in acceptance.patches])
    torch.testing.assert_close(bars.float(), torch.tensor([[1, 0, 0.5], [2, 0, 0.25], [1, 0.5, 0.2], [2, 0.25, 0]]))


def test_a_plot_per_panel_and_a_colour_per_group(tmp_path):
    panels = {
        "T=0": [Gain("chain", "auto", 0.0), Gain("tree", "auto", 0.5, 0.2, 0.8), Gain("tree", "block", 0.1, -0.2, 0.4)],
        "T=1": [Gain("chain", "auto", 0.0), Gain("tree", "auto", 0.3, 0.1, 0.5)],
    }
    figure = plot_gains(panels, tmp_path / "a.png", "Study", zero=0.0)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["T=0", "T=1"]
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == ["auto", "block"]
    assert (tmp_path / "a.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot_gains({}), "at least one cell"),
        (lambda: plot_comparison([]), "at least one method"),
        (lambda: plot_comparison([Measured("plain", [], [1.0])]), "at least one measurement"),
        (lambda: plot_comparison([Measured("a", [1.0], [1.0]), Measured("b", [1.0, 2.0], [1.0])]), "the same prompts"),
    ],
)
def test_wrong_inputs_say_what_is_wrong(call, message):
    with pytest.raises(TreespecError, match=message):
        call()
