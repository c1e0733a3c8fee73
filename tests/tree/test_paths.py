"""Rank paths: the literal that vLLM takes, in and out."""

import pytest
from helpers.grown_trees import rank_paths
from helpers.small_trees import parent_lists, tree_of
from hypothesis import given, seed, settings

from treespec.errors import InvalidTreeError
from treespec.tree import TokenTree, parents_of_paths, parse_paths


@seed(4)
@settings(max_examples=60, deadline=None, database=None)
@given(parent_lists())
def test_rank_paths_go_in_and_out(parents: list[int]) -> None:
    paths = rank_paths(tree_of(parents))
    rebuilt = TokenTree.from_paths(paths, range(100, 100 + len(parents)))
    assert rebuilt.parent_list == parents
    assert TokenTree.from_paths(repr(paths), range(len(parents))).parent_list == parents
    assert parents_of_paths(parse_paths(paths)) == parents


def test_the_literal_of_vllm() -> None:
    assert parse_paths("[(0,), (1,), (0, 0)]") == [(0,), (1,), (0, 0)]
    tree = TokenTree.from_paths("[(0,), (1,), (0, 0), (0, 1), (1, 0)]", [9, 1, 2, 3, 4, 5])
    assert tree.parent_list == [-1, 0, 0, 1, 1, 2]
    assert tree.draft_probs is None
    assert TokenTree.from_paths([], [9]).num_nodes == 1


@pytest.mark.parametrize(
    "paths",
    [
        "[(0,), (1,",
        "zero",
        "5",
        "(0,)",
        [(0,), (0,)],
        [(False,)],
        [(0, 0)],
        [(1,)],
        [()],
        [(-1,)],
        [(0.5,)],
        [("0",)],
        [0, 1],
        None,
    ],
)
def test_paths_that_do_not_form_a_tree_raise(paths) -> None:
    with pytest.raises(InvalidTreeError, match="path"):
        parse_paths(paths)
