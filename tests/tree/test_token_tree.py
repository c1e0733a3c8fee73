"""Token trees against networkx: structure, sampling schemes, distributions of siblings."""

import dataclasses

import networkx as nx
import pytest
import torch
from helpers.small_trees import DISTRIBUTIONS, graph_of, pair_tree, parent_lists, tree_of
from hypothesis import given, seed, settings

from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT, TokenTree, TreeBatch, ancestor_mask


@seed(0)
@settings(max_examples=60, deadline=None, database=None)
@given(parent_lists())
def test_derived_structure_equals_networkx(parents: list[int]) -> None:
    tree, graph = tree_of(parents), graph_of(parents)
    assert tree.depths == [nx.shortest_path_length(graph, 0, node) for node in graph]
    expected = [[other == node or other in nx.ancestors(graph, node) for other in graph] for node in graph]
    assert tree.ancestor_mask().tolist() == expected
    leaves = [node for node in graph if graph.out_degree(node) == 0]
    assert tree.leaf_paths() == [tuple(nx.shortest_path(graph, 0, leaf)) for leaf in leaves]
    assert [tree.children(node) for node in graph] == [sorted(graph.successors(node)) for node in graph]
    assert tree.is_chain == all(graph.out_degree(node) <= 1 for node in graph)
    for node in graph:
        assert tree.path_to(node) == tuple(nx.shortest_path(graph, 0, node))
    drawn = tree.to_networkx()
    assert list(drawn.edges) == list(graph.edges)
    assert dict(drawn.nodes(data=True)) == {node: {"token": node + 100, "depth": tree.depths[node]} for node in graph}


def test_a_chain() -> None:
    tree = TokenTree.chain([9, 1, 2], DISTRIBUTIONS)
    assert tree.is_chain
    assert tree.parent_list == [-1, 0, 1]
    assert tree.sampling_schemes == {IID}
    for node in (1, 2):
        probs = tree.draft_probs_of(node)
        assert probs is not None
        assert probs.equal(DISTRIBUTIONS[node - 1])
    assert TokenTree.chain([9, 1, 2]).sampling_schemes == {SELECTED}


@pytest.mark.parametrize(
    ("draft_index", "flags", "scheme"),
    [
        (None, None, SELECTED),
        ([-1, -1], None, SELECTED),
        ([0, 0], None, IID),
        ([0, 0], [True, True], WITHOUT_REPLACEMENT),
        ([0, -1], None, MIXED),
        ([0, 1], None, MIXED),
        ([0, 0], [False, True], MIXED),
    ],
)
def test_sampling_schemes_of_siblings(draft_index: list[int], flags: list[bool] | None, scheme: str) -> None:
    tree = pair_tree(draft_index, flags)
    assert tree.sampling_schemes == {scheme}
    assert TreeBatch.from_trees([tree]).sampling_schemes == {scheme}


def test_an_only_child_counts_as_independent() -> None:
    tree = TokenTree.chain([9, 1], DISTRIBUTIONS[:1])
    assert dataclasses.replace(tree, is_without_replacement=torch.tensor([False, True])).sampling_schemes == {IID}
    assert tree_of([-1]).sampling_schemes == frozenset()


def test_the_distribution_without_earlier_siblings() -> None:
    """Only siblings from the same row are taken out."""
    tree = TokenTree(
        torch.tensor([9, 0, 1, 0, 2]), torch.tensor([-1, 0, 0, 0, 0]), DISTRIBUTIONS, torch.tensor([-1, 0, 0, 1, 1]),
        torch.tensor([False, True, True, True, True]),
    )  # fmt: skip
    distributions = [tree.draft_probs_of(node) for node in range(1, 5)]
    expected = [DISTRIBUTIONS[0], torch.tensor([0, 0.6, 0.4]), DISTRIBUTIONS[1], torch.tensor([0, 0.25, 0.75])]
    for distribution, wanted in zip(distributions, expected, strict=True):
        assert distribution is not None
        torch.testing.assert_close(distribution, wanted)
    assert DISTRIBUTIONS[0].tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_ancestor_mask_of_a_deep_chain() -> None:
    size = 70
    parents = torch.arange(-1, size - 1).unsqueeze(0)
    assert ancestor_mask(parents)[0].equal(torch.ones(size, size, dtype=torch.bool).tril())
