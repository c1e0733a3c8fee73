"""The picture of a chunk's matrices shows what tree passes read."""

from docs.tools.ancestor_matrix import ROOT, draw, matrices


def test_the_picture_is_up_to_date(tmp_path):
    draw(tmp_path / "drawn.svg")
    drawn = (tmp_path / "drawn.svg").read_text()
    assert drawn.count("<text") == (ROOT / "docs/assets/ancestor_matrix.svg").read_text().count("<text")


def test_a_tree_reads_less_than_a_chunk():
    causal, ancestors = matrices().values()
    assert bool((ancestors <= causal).all())
    assert int(ancestors.sum()) < int(causal.sum())
