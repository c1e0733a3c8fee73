"""Every way in which a tree can be wrong, and the error that each mistake gives."""

from __future__ import annotations

import pytest
import torch

from treespec import Paths
from treespec.errors import InvalidTreeError, TreespecError
from treespec.tree import (
    TokenTree,
)

DISTRIBUTIONS = torch.tensor([[0.5, 0.3, 0.2], [0.25, 0.25, 0.5]])


def test_wrong_tokens_raise() -> None:
    with pytest.raises(InvalidTreeError, match="integers"):
        TokenTree.from_paths([(0,)], torch.tensor([1.5, 2.0]))
    with pytest.raises(InvalidTreeError, match="integers"):
        TokenTree.chain([1.5, 2.0])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidTreeError, match="parents must be"):
        TokenTree.from_paths([(0,)], [1, 2, 3])
    with pytest.raises(InvalidTreeError, match="at least a root"):
        TokenTree.chain([])
    for tokens in (5, None, "text", [[1, 2]], [1, "a"], [2**70]):
        with pytest.raises(InvalidTreeError, match="flat list of integers"):
            TokenTree.chain(tokens)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["tokens", "parents", "draft_probs", "draft_index", "is_without_replacement"])
def test_arrays_are_tensors(name: str) -> None:
    good = {
        **PAIR,
        "draft_probs": DISTRIBUTIONS,
        "draft_index": INDEX,
        "is_without_replacement": torch.zeros(3, dtype=torch.bool),
    }
    with pytest.raises(InvalidTreeError, match=f"{name} must be a tensor, got list"):
        TokenTree(**good | {name: good[name].tolist()})


INDEX, FLAGS = torch.tensor([-1, 0, 0]), torch.tensor([False, True, True])
PAIR = {"tokens": torch.tensor([9, 1, 2]), "parents": torch.tensor([-1, 0, 0])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parents": [0, 0, 0]}, "node 0 must be the root"),
        ({"parents": [-1, -1, 0]}, "second root"),
        ({"parents": [-1, 2, 0]}, "before its child"),
        ({"parents": [-1, 1, 0]}, "before its child"),
        ({"parents": [-1, 0, -2]}, "before its child"),
        ({"parents": [-1, 0, 3]}, "before its child"),
        ({"parents": [-1, 0]}, "parents must be"),
        ({"parents": [-1.0, 0.0, 0.0]}, "parents must be"),
        ({"tokens": [[9, 1, 2]]}, r"tokens must be int64 \[N\]"),
        ({"tokens": []}, "at least a root"),
        ({"tokens": [9.0, 1.0, 2.0]}, "tokens must be"),
        ({"draft_probs": [0.5, 0.3, 0.2]}, r"draft_probs must be float \[R, V\]"),
        ({"draft_probs": [[1, 0, 0]]}, "draft_probs must be float"),
        ({"draft_probs": torch.zeros(0, 3)}, "R >= 1"),
        ({"draft_probs": None}, "come together"),
        ({"draft_index": None}, "come together"),
        ({"draft_index": [-1, 0]}, "draft_index must be"),
        ({"draft_index": [0, 0, 0]}, "-1 at the root"),
        ({"draft_index": [-1, 0, 2]}, r"in \[-1, 2\)"),
        ({"draft_index": [-1, 0, -2]}, r"in \[-1, 2\)"),
        ({"is_without_replacement": [0, 1, 1]}, "is_without_replacement must be torch.bool"),
        (
            {"draft_probs": [[0.5, 0.3, 0.1], [1.0, 0.0, 0.0]]},
            "distribution 0 is not a probability distribution.*0.9",
        ),
        (
            {"draft_probs": [[0.5, 0.3, 0.2], [1.0, 0.5, -0.5]]},
            "distribution 1 is not a probability distribution.*sum to 1, least -0.5",
        ),
        (
            {"draft_probs": [[0.5, 0.3, 0.2], [1.0, float("nan"), 0.0]]},
            "distribution 1 is not a probability distribution",
        ),
        ({"draft_probs": [[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]}, "node 1 carries token 1, which .* zero"),
        ({"tokens": [9, 1, 3]}, "node 2 carries token 3"),
        ({"tokens": [9, 1, -1]}, "node 2 carries token -1"),
        ({"tokens": [9, 1, 1], "is_without_replacement": [False, True, True]}, "node 2 carries token 1"),
    ],
)
def test_wrong_trees_raise(changes: dict, message: str) -> None:
    good = {**PAIR, "draft_probs": DISTRIBUTIONS, "draft_index": INDEX, "is_without_replacement": None}
    TokenTree(**good)
    spoilt = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in changes.items()}
    with pytest.raises(InvalidTreeError, match=message):
        TokenTree(**{**good, **spoilt})


UNIFORM = torch.full((3, 4), 0.25)


def three_nodes(tokens=(0, 1, 2), parents=(-1, 0, 1), **options):
    return TokenTree(torch.tensor(tokens), torch.tensor(parents), **options)


WRONG = {
    "two roots": (lambda: three_nodes(parents=(-1, -1, 0)), InvalidTreeError, "second root"),
    "no root": (lambda: three_nodes(parents=(0, 0, 1)), InvalidTreeError, "root"),
    "a cycle": (lambda: three_nodes(parents=(-1, 2, 1)), InvalidTreeError, "before its child"),
    "a child of itself": (lambda: three_nodes(parents=(-1, 1, 1)), InvalidTreeError, "before its child"),
    "shapes that differ": (lambda: three_nodes(parents=(-1, 0)), InvalidTreeError, "shape"),
    "float tokens": (lambda: three_nodes(tokens=(0.0, 1.0, 2.0)), InvalidTreeError, "int64"),
    "an empty tree": (lambda: three_nodes((), ()), InvalidTreeError, "root"),
    "distributions without an index": (lambda: three_nodes(draft_probs=UNIFORM), InvalidTreeError, "draft_index"),
    "a distribution index out of range": (
        lambda: three_nodes(draft_probs=UNIFORM, draft_index=torch.tensor([-1, 0, 9])),
        InvalidTreeError,
        "draft_index",
    ),
    "a distribution that sums to two": (lambda: TokenTree.chain([0, 1], UNIFORM[:1] * 2), InvalidTreeError, "sum to 2"),
    "a drawn token without mass": (
        lambda: TokenTree.chain([0, 1], torch.tensor([[1.0, 0.0]])),
        InvalidTreeError,
        "probability zero",
    ),
    "a literal that is not a list": (lambda: Paths("[(0,), (0, "), InvalidTreeError, "rank paths"),
    "a path before its parent": (lambda: Paths([(0, 0)]), InvalidTreeError, "parent"),
    "a path without its elder": (lambda: Paths([(1,)]), InvalidTreeError, "sibling"),
    "no paths": (lambda: Paths([]), InvalidTreeError, "no rank path"),
}


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_gets_a_clear_error(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert isinstance(caught.value, TreespecError)
