"""What a user can get wrong in trees and paths, and the error that each mistake gives."""

import pytest
import torch

from treespec import Paths, TokenTree
from treespec.errors import InvalidTreeError, TreespecError

UNIFORM = torch.full((3, 4), 0.25)


def tree_of(tokens=(0, 1, 2), parents=(-1, 0, 1), **options):
    return TokenTree(torch.tensor(tokens), torch.tensor(parents), **options)


WRONG = {
    "two roots": (lambda: tree_of(parents=(-1, -1, 0)), InvalidTreeError, "second root"),
    "no root": (lambda: tree_of(parents=(0, 0, 1)), InvalidTreeError, "root"),
    "a cycle": (lambda: tree_of(parents=(-1, 2, 1)), InvalidTreeError, "before its child"),
    "a child of itself": (lambda: tree_of(parents=(-1, 1, 1)), InvalidTreeError, "before its child"),
    "shapes that differ": (lambda: tree_of(parents=(-1, 0)), InvalidTreeError, "shape"),
    "float tokens": (lambda: tree_of(tokens=(0.0, 1.0, 2.0)), InvalidTreeError, "int64"),
    "an empty tree": (lambda: tree_of((), ()), InvalidTreeError, "root"),
    "distributions without an index": (lambda: tree_of(draft_probs=UNIFORM), InvalidTreeError, "draft_index"),
    "a distribution index out of range": (
        lambda: tree_of(draft_probs=UNIFORM, draft_index=torch.tensor([-1, 0, 9])),
        InvalidTreeError,
        "draft_index",
    ),
    "a distribution that sums to two": (lambda: TokenTree.chain([0, 1], UNIFORM[:1] * 2), InvalidTreeError, "sum to 2"),
    "a drawn token without mass": (
        lambda: TokenTree.chain([0, 1], torch.tensor([[1.0, 0.0]])),
        InvalidTreeError,
        "probability zero",
    ),
    "a literal that is no list": (lambda: Paths("[(0,), (0, "), InvalidTreeError, "rank paths"),
    "a path before its parent": (lambda: Paths([(0, 0)]), InvalidTreeError, "parent"),
    "a path without its elder": (lambda: Paths([(1,)]), InvalidTreeError, "sibling"),
    "no paths": (lambda: Paths([]), InvalidTreeError, "no rank path"),
}


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_gets_a_clear_error(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert isinstance(caught.value, TreespecError)
