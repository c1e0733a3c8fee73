"""Every way in which a tree can be wrong: the error that construction gives, and the flag of a batch."""

import dataclasses

import pytest
import torch
from helpers.small_trees import DISTRIBUTIONS, IID, PAIR, WRONG_VALUES, pair_tree

from treespec.errors import InvalidTreeError
from treespec.tree import TokenTree, TreeBatch

INDEX = torch.tensor([-1, 0, 0])
DRAWN = {**PAIR, "draft_probs": DISTRIBUTIONS, "draft_index": INDEX, "is_without_replacement": torch.zeros(3).bool()}


@pytest.mark.parametrize("tokens", [5, None, "text", [[1, 2]], [1, "a"], [2**70], [1.5, 2.0], torch.tensor([1.5, 2.0])])
def test_tokens_are_a_flat_list_of_integers(tokens) -> None:
    for make in (TokenTree.chain, lambda tokens: TokenTree.from_paths([(0,)], tokens)):
        with pytest.raises(InvalidTreeError, match="flat list of integers"):
            make(tokens)


def test_paths_and_tokens_fit() -> None:
    with pytest.raises(InvalidTreeError, match="parents must be"):
        TokenTree.from_paths([(0,)], [1, 2, 3])
    with pytest.raises(InvalidTreeError, match="at least a root"):
        TokenTree.chain([])


@pytest.mark.parametrize("name", DRAWN)
def test_arrays_are_tensors(name: str) -> None:
    with pytest.raises(InvalidTreeError, match=f"{name} must be a tensor, got list"):
        TokenTree(**DRAWN | {name: DRAWN[name].tolist()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
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
        ({"is_without_replacement": [0, 1, 1]}, "is_without_replacement must be torch.bool"),
        *WRONG_VALUES,
    ],
)
def test_wrong_trees_raise(changes: dict, message: str) -> None:
    spoilt = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in changes.items()}
    with pytest.raises(InvalidTreeError, match=message):
        TokenTree(**{**DRAWN, **spoilt})


@pytest.mark.parametrize("changes", [changes for changes, _ in WRONG_VALUES])
def test_the_flag_of_a_batch_sees_what_construction_of_a_tree_sees(changes: dict) -> None:
    assert bool(IID.is_valid)
    arrays = {name: torch.tensor(value if name == "draft_probs" else [value]) for name, value in changes.items()}
    assert not dataclasses.replace(IID, **arrays).is_valid


def test_the_flag_lets_the_same_token_be_drawn_again_where_it_may() -> None:
    """From another row, below another parent, or with replacement."""
    tree = TokenTree(
        torch.tensor([9, 1, 1, 1, 2]), torch.tensor([-1, 0, 0, 1, 1]), DISTRIBUTIONS, torch.tensor([-1, 0, 1, 0, 0]),
        torch.tensor([False, True, True, True, True]),
    )  # fmt: skip
    same = dataclasses.replace(pair_tree([0, 0]), tokens=torch.tensor([9, 1, 1]))
    assert all(TreeBatch.from_trees([one]).is_valid for one in (tree, same))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [9, 1, 2]}, r"tokens must be int64 \[B, N\]"),
        ({"parents": [[-1, 0]]}, "parents must be"),
        ({"draft_probs": [[0.5, 0.3, 0.2]]}, "come together"),
        ({"draft_index": [[-1, 0, 0]]}, "come together"),
        ({"draft_probs": [[[0.5, 0.3, 0.2]]], "draft_index": [[-1, 0, 0]]}, r"draft_probs must be float \[R, V\]"),
        ({"values": [[1.0, 0.5]]}, "values must be float"),
    ],
)
def test_wrong_batches_raise(changes: dict, message: str) -> None:
    good = {"tokens": [[9, 1, 2]], "parents": [[-1, 0, 0]]}
    with pytest.raises(InvalidTreeError, match=message):
        TreeBatch(**{name: torch.tensor(value) for name, value in {**good, **changes}.items()})


def test_batches_of_nothing_or_of_unlike_vocabularies_raise() -> None:
    for trees in ([], [None], TokenTree.chain([1])):
        with pytest.raises(InvalidTreeError, match="at least one TokenTree"):
            TreeBatch.from_trees(trees)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidTreeError, match="share V"):
        TreeBatch.from_trees([TokenTree.chain([9, 1], torch.full((1, size), 1 / size)) for size in (3, 4)])
