"""Batches of trees: they hold their trees, and cut them."""

import networkx as nx
import pytest
import torch
from helpers.small_trees import DISTRIBUTIONS, graph_of, pair_tree, parent_lists, tree_of
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from treespec.tree import MIXED, PADDING_PARENT, SELECTED, WITHOUT_REPLACEMENT, HostTree, TokenTree, TreeBatch


@seed(2)
@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(parent_lists(), min_size=1, max_size=5))
def test_a_batch_holds_its_trees(listed: list[list[int]]) -> None:
    trees = [tree_of(parents) for parents in listed]
    batch = TreeBatch.from_trees(trees)
    assert bool(batch.is_valid)
    assert batch.num_rows == len(trees)
    assert batch.max_nodes == max(tree.num_nodes for tree in trees)
    assert batch.num_nodes.tolist() == [tree.num_nodes for tree in trees]
    assert batch.is_chain == all(tree.is_chain for tree in trees)
    for row, tree in enumerate(trees):
        size = tree.num_nodes
        assert batch.depths[row].tolist() == tree.depths + [0] * (batch.max_nodes - size)
        assert batch.ancestors[row, :size, :size].equal(tree.ancestor_mask())
        assert not batch.ancestors[row, size:].any()
        assert not batch.ancestors[row, :, size:].any()
        assert batch.trees[row].parent_list == tree.parent_list
        assert batch.trees[row].token_list == tree.token_list


@seed(3)
@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(parent_lists(), min_size=1, max_size=4), st.integers(-1, 6))
def test_limit_depth_cuts_what_networkx_cuts(listed: list[list[int]], first_limit: int) -> None:
    batch = TreeBatch.from_trees([tree_of(parents) for parents in listed])
    limits = [first_limit + row for row in range(len(listed))]
    cut = batch.limit_depth(limits)
    assert bool(cut.is_valid)
    for row, parents in enumerate(listed):
        graph = graph_of(parents)
        kept = set(nx.ego_graph(graph, 0, radius=max(limits[row], 0)))
        tokens = cut.trees[row].to_networkx()
        relabelled = nx.relabel_nodes(tokens, {node: tokens.nodes[node]["token"] - 100 for node in tokens})
        assert set(relabelled.edges) == set(graph.subgraph(kept).edges)
        assert set(relabelled.nodes) == kept


def test_rows_are_selected_in_any_order_and_share_the_table() -> None:
    trees = [tree_of(parents) for parents in ([-1, 0], [-1, 0, 0], [-1])]
    batch = TreeBatch.from_trees(trees)
    chosen = batch.select_rows([2, 0])
    assert [tree.parent_list for tree in chosen.trees] == [[-1], [-1, 0]]
    assert chosen.draft_probs is batch.draft_probs
    assert batch.select_rows([0, 1, 2]) is batch


def test_keeping_nodes_takes_their_distributions_along() -> None:
    tree = TokenTree(
        torch.tensor([0, 1, 2, 1, 2]), torch.tensor([-1, 0, 0, 1, 2]), DISTRIBUTIONS, torch.tensor([-1, 0, 0, 1, -1]),
        torch.tensor([False, True, True, False, False]),
    )  # fmt: skip
    batch = TreeBatch.from_trees([tree, tree_of([-1])])
    keep = torch.tensor([[True, False, True, False, True], [True, False, False, False, False]])
    cut = batch.keep_nodes(keep)
    assert cut.parents.tolist() == [[-1, 0, 1], [-1, PADDING_PARENT, PADDING_PARENT]]
    assert cut.tokens[0].tolist() == [0, 2, 2]
    assert cut.draft_index is not None
    assert cut.draft_index[0].tolist() == [-1, 0, -1]
    assert cut.is_without_replacement is not None
    assert cut.is_without_replacement[0].tolist() == [False, True, False]


def test_selecting_nodes_orders_them_and_renumbers_parents() -> None:
    trees = [HostTree([9, 1, 2, 3, 4], [-1, 0, 1, 0, 3], [1.0, 0.5, 0.2, 0.4, 0.3]), HostTree([8], [-1], [1.0])]
    batch = TreeBatch.from_host_trees(trees)
    assert batch.host_trees()[0][:2] == trees[0][:2]
    cut = batch.select_nodes([[0, 3, 1, 4], [0]])
    assert cut.is_valid
    assert cut.parents.tolist() == [[-1, 0, 0, 1], [-1, *[PADDING_PARENT] * 3]]
    assert cut.tokens[0].tolist() == [9, 3, 1, 4]
    assert cut.values is not None
    assert cut.values[0].tolist() == pytest.approx([1.0, 0.4, 0.5, 0.3])


def test_confidences_are_values_over_the_parents() -> None:
    tree = HostTree([9, 1, 2, 3, 4], [-1, 0, 1, 1, 3], [1.0, 0.5, 0.2, 0.6, 0.0])
    assert tree.confidences() == pytest.approx([1.0, 0.5, 0.4, 1.0, 0.0]), "in [0, 1], also where values rise"
    # Values that say nothing count as certain.
    assert HostTree([9, 1, 2], [-1, 0, 1], [1.0, 0.0, 0.0]).confidences() == [1.0, 0.0, 1.0]
    assert HostTree([9, 1], [-1, 0], []).confidences() == [1.0, 1.0]


def test_batched_distributions_are_those_of_the_trees() -> None:
    first, second = pair_tree([0, 0], [True, True]), pair_tree([1, -1], is_width_fixed=False)
    batch = TreeBatch.from_trees([first, tree_of([-1, 0]), second])
    assert not batch.is_width_fixed
    assert batch.sampling_schemes == {WITHOUT_REPLACEMENT, SELECTED, MIXED}
    for tree, row in ((first, 0), (second, 2)):
        for node in (1, 2):
            probs, batched = tree.draft_probs_of(node), batch.trees[row].draft_probs_of(node)
            assert (probs is None and batched is None) or (
                probs is not None and batched is not None and probs.equal(batched)
            )


def test_the_best_chain_is_the_most_valuable_path() -> None:
    trees = TreeBatch(
        torch.arange(12).view(2, 6),
        torch.tensor([[-1, 0, 0, 1, 2, 2], [-1, 0, 1, 1, -2, -2]]),
        values=torch.tensor([[1.0, 0.7, 0.6, 0.1, 0.1, 0.5], [1.0, 0.9, 0.4, 0.4, 0.0, 0.0]]),
    )
    chains = trees.best_chains()
    assert chains.tokens.tolist() == [[0, 2, 5], [6, 7, 8]]
    assert chains.parents.tolist() == [[-1, 0, 1], [-1, 0, 1]]


def test_the_best_chain_of_sampled_children_follows_the_first_draws() -> None:
    probs = torch.full((2, 4), 0.25)
    flags = torch.tensor([False, True, True, False])
    tree = TokenTree(torch.tensor([0, 3, 1, 2]), torch.tensor([-1, 0, 0, 2]), probs, torch.tensor([-1, 0, 0, 1]), flags)
    assert tree.best_chain([1.0, 0.1, 0.9, 0.9]) == (0, 1)
