"""Public objects show their options."""

import pytest

from tests.helpers.tiny import tiny_llama
from treespec import BestFirst, Chain, Control, KAry, SuffixLookup, SuffixStore, TokenRecycling, TreeSpeculation


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (Chain(3), "Chain(k=3)"),
        (BestFirst(16, depth=4), "BestFirst(num_nodes=16, depth=4)"),
        (Control(), "Control()"),
        (KAry((2, 2)), "KAry(branching=[2, 2])"),
        (TokenRecycling(), "TokenRecycling()"),
        (
            TreeSpeculation([SuffixLookup(min_prob=0.1), TokenRecycling()], tree=Chain(2)),
            "TreeSpeculation(Merge(drafters=[SuffixLookup(min_prob=0.1), TokenRecycling()], pool=<OpinionPool>), "
            "tree=Chain(k=2), verification='auto')",
        ),
    ],
)
def test_public_objects_show_their_options(shown: object, expected: str) -> None:
    assert repr(shown) == expected


def test_large_options_are_shown_by_their_class() -> None:
    model = tiny_llama()
    assert repr(TreeSpeculation(model, tree=4)).startswith("TreeSpeculation(DraftModel(scorer=<TreeScorer>")
    assert repr(SuffixStore([[1] * 1000])) == "SuffixStore()"
