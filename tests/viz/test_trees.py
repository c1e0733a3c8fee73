"""Pictures of trees: what they show is read back from the figure."""

import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text

from treespec import TokenTree, TreespecError, Verdict
from treespec.viz import ACCEPTED, draw_tree

TREE = TokenTree(torch.tensor([7, 1, 2, 3, 4]), torch.tensor([-1, 0, 0, 1, 1]))
VERDICT = Verdict((0, 1, 4), 9, True)
WORDS = {7: "root", 1: " the", 2: "\n", 3: "日本", 4: "$x$", 9: "an internationally long one"}


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_tree(TREE, probs=[0.5]), "one number per node, 5, got 1"),
        (lambda: draw_tree(TREE, Verdict((0, 2, 4), 9, True)), "belongs to another tree"),
        (lambda: draw_tree(TREE, Verdict((0, 9), 9, True)), "belongs to another tree"),
    ],
)
def test_wrong_inputs_say_what_is_wrong(call, message):
    with pytest.raises(TreespecError, match=message):
        call()
