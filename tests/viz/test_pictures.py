"""Pictures of trees, steps and measurements: what they show is read back from the figure."""

import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.text import Text

from treespec import TokenTree, TreespecError, Verdict
from treespec.viz import (
    ACCEPTED,
    Gain,
    Measured,
    draw_decision,
    draw_mask,
    draw_tree,
    plot_comparison,
    plot_gains,
    plot_training,
)

TREE = TokenTree(torch.tensor([7, 1, 2, 3, 4]), torch.tensor([-1, 0, 0, 1, 1]))
VERDICT = Verdict((0, 1, 4), 9, True)
WORDS = {7: "root", 1: " the", 2: "\n", 3: "日本", 4: "$x$", 9: "an internationally long one"}
THIRDS = torch.full((3,), 1 / 3)


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def boxes(figure) -> list[FancyBboxPatch]:
    return figure.findobj(FancyBboxPatch)


def test_every_node_and_the_next_token_has_a_box_and_accepted_ones_are_filled():
    assert len(boxes(draw_tree(TREE))) == 5
    figure = draw_tree(TREE, VERDICT)
    assert len(boxes(figure)) == 6
    filled = [box.get_facecolor() for box in boxes(figure)].count(boxes(figure)[0].get_facecolor())
    assert filled == len(VERDICT.path)
    assert boxes(figure)[0].get_facecolor() == to_rgba(ACCEPTED)


def test_boxes_do_not_overlap():
    parents = [-1, *(max(0, (i - 1) // 2) for i in range(1, 32))]
    tree = TokenTree(torch.arange(32), torch.tensor(parents))
    extents = [box.get_extents() for box in boxes(draw_tree(tree, probs=[0.5] * 32))]
    overlaps = [(a, b) for i, a in enumerate(extents) for b in extents[:i] if a.overlaps(b)]
    assert not overlaps


def test_labels_are_cut_and_probabilities_stand_next_to_all_nodes_but_the_root(tmp_path):
    probs = [1.0, 0.25, 0.001, 0.999, 0.5, 0.75]
    shown = texts(draw_tree(TREE, VERDICT, WORDS.__getitem__, probs, path=tmp_path / "tree.png"))
    assert {"root", "␣the", "⏎", "□□", "$x$", "an internatio…"} <= set(shown)
    expected = [".25", "<.01", "1.0", ".50", ".75"]
    assert [text for text in shown if text in expected] == expected
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")


def test_the_mask_is_the_trees_own(tmp_path):
    figure = draw_mask(TREE, cached=["a", " b"], labels="t{}".format, path=tmp_path / "mask.svg", title="Four")
    dark = [cell for cell in figure.axes[0].findobj(Rectangle) if cell.get_facecolor() == to_rgba(ACCEPTED)]
    assert len(dark) == int(TREE.ancestor_mask().sum())
    shown = texts(figure)
    assert {"Four", "a", "␣b", "t7", "t1", "t2", "t3", "t4"} <= set(shown)
    assert [text for text in shown if text.isdigit()] == ["2", "3", "3", "4", "4"]  # Cached tokens plus depth.
    assert (tmp_path / "mask.svg").stat().st_size > 1000


def test_a_decision_shows_the_shared_mass_and_the_residual():
    figure = draw_decision(torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3]), ["a", "b", "c"])
    assert any("accepted with 0.60" in text for text in texts(figure))
    heights = [bar.get_height() for bar in figure.axes[1].containers[0]]
    assert heights == pytest.approx([1, 0, 0])


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
        (lambda: draw_tree(TREE, probs=[0.5]), "one number per node, 5, got 1"),
        (lambda: draw_tree(TREE, Verdict((0, 2, 4), 9, True)), "belongs to another tree"),
        (lambda: draw_tree(TREE, Verdict((0, 9), 9, True)), "belongs to another tree"),
        (lambda: draw_decision(THIRDS, THIRDS, ["a", "b"]), r"as many .* got \(3, 3, 2\)"),
        (lambda: plot_gains({}), "at least one cell"),
        (lambda: plot_comparison([]), "at least one method"),
        (lambda: plot_comparison([Measured("plain", [], [1.0])]), "at least one measurement"),
        (lambda: plot_comparison([Measured("a", [1.0], [1.0]), Measured("b", [1.0, 2.0], [1.0])]), "the same prompts"),
    ],
)
def test_wrong_inputs_say_what_is_wrong(call, message):
    with pytest.raises(TreespecError, match=message):
        call()
