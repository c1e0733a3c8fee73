"""Pictures that explain a step: what they show is read back from the figure."""

import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from treespec import TokenTree, TreespecError
from treespec.viz import ACCEPTED, draw_decision, draw_mask

TREE = TokenTree(torch.tensor([7, 1, 2, 3]), torch.tensor([-1, 0, 0, 1]))


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_the_mask_is_the_trees_own(tmp_path):
    figure = draw_mask(TREE, cached=["a", " b"], labels=lambda token: f"t{token}", path=tmp_path / "mask.svg")
    dark = [cell for cell in figure.axes[0].findobj(Rectangle) if cell.get_facecolor() == to_rgba(ACCEPTED)]
    assert len(dark) == int(TREE.ancestor_mask().sum())
    shown = texts(figure)
    assert {"a", "␣b", "t7", "t1", "t2", "t3"} <= set(shown)
    assert [text for text in shown if text.isdigit()] == ["2", "3", "3", "4"]  # Positions: cached tokens plus depth.
    assert (tmp_path / "mask.svg").stat().st_size > 1000


def test_a_decision_shows_the_shared_mass_and_the_residual():
    figure = draw_decision(torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3]), ["a", "b", "c"])
    assert any("accepted with 0.60" in text for text in texts(figure))
    heights = [bar.get_height() for bar in figure.axes[1].containers[0]]
    assert heights == pytest.approx([1, 0, 0])


def test_labels_for_other_tokens_are_refused():
    with pytest.raises(TreespecError, match=r"as many .* got \(3, 3, 2\)"):
        draw_decision(torch.full((3,), 1 / 3), torch.full((3,), 1 / 3), ["a", "b"])
