"""Token trees and batches against networkx, and every way in which a tree can be wrong."""

from __future__ import annotations

import dataclasses

import networkx as nx
import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from treespec.errors import InvalidTreeError
from treespec.tree import (
    IID,
    MIXED,
    PADDING_PARENT,
    SELECTED,
    WITHOUT_REPLACEMENT,
    TokenTree,
    TreeBatch,
    Verdict,
    ancestor_mask,
    parents_of_paths,
    parse_paths,
)

DISTRIBUTIONS = torch.tensor([[0.5, 0.3, 0.2], [0.25, 0.25, 0.5]])


@st.composite
def parent_lists(draw, max_nodes: int = 20) -> list[int]:
    size = draw(st.integers(1, max_nodes))
    return [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]


def tree_of(parents: list[int]) -> TokenTree:
    return TokenTree(torch.arange(len(parents)) + 100, torch.tensor(parents))


def graph_of(parents: list[int]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(parents)))
    graph.add_edges_from((parent, node) for node, parent in enumerate(parents) if parent >= 0)
    return graph


@seed(0)
@settings(max_examples=150, deadline=None, database=None)
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


@seed(1)
@settings(max_examples=60, deadline=None, database=None)
@given(parent_lists())
def test_to_networkx(parents: list[int]) -> None:
    graph = tree_of(parents).to_networkx()
    assert nx.utils.graphs_equal(nx.DiGraph(graph.edges), nx.DiGraph(graph_of(parents).edges))
    assert nx.is_arborescence(graph)
    for node, data in graph.nodes(data=True):
        assert data == {"token": node + 100, "depth": nx.shortest_path_length(graph, 0, node)}


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
        relabelled = nx.relabel_nodes(tokens, {node: token - 100 for node, token in tokens.nodes(data="token")})
        assert set(relabelled.edges) == set(graph.subgraph(kept).edges)
        assert set(relabelled.nodes) == kept


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


@seed(4)
@settings(max_examples=60, deadline=None, database=None)
@given(parent_lists())
def test_rank_paths_go_in_and_out(parents: list[int]) -> None:
    paths = tree_of(parents).to_paths()
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
def test_paths_that_are_no_tree_raise(paths) -> None:
    with pytest.raises(InvalidTreeError, match="path"):
        parse_paths(paths)


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


INDEX, FLAGS = torch.tensor([-1, 0, 0]), torch.tensor([False, True, True])
PAIR = {"tokens": torch.tensor([9, 1, 2]), "parents": torch.tensor([-1, 0, 0])}


@pytest.mark.parametrize(
    ("draft_index", "flags", "scheme"),
    [
        ([-1, -1, -1], None, SELECTED),
        ([-1, 0, 0], None, IID),
        ([-1, 0, 0], [False, True, True], WITHOUT_REPLACEMENT),
        ([-1, 0, -1], None, MIXED),
        ([-1, 0, 1], None, MIXED),
        ([-1, 0, 0], [False, False, True], MIXED),
    ],
)
def test_sampling_schemes_of_siblings(draft_index: list[int], flags: list[bool] | None, scheme: str) -> None:
    is_drawn_once = None if flags is None else torch.tensor(flags)
    tree = TokenTree(
        **PAIR, draft_probs=DISTRIBUTIONS, draft_index=torch.tensor(draft_index), is_without_replacement=is_drawn_once
    )
    assert tree.sampling_schemes == {scheme}
    assert TreeBatch.from_trees([tree]).sampling_schemes == {scheme}


def test_an_only_child_counts_as_independent() -> None:
    flags = torch.tensor([False, True])
    tree = TokenTree(torch.tensor([9, 1]), torch.tensor([-1, 0]), DISTRIBUTIONS, torch.tensor([-1, 0]), flags)
    assert tree.sampling_schemes == {IID}
    assert tree_of([-1]).sampling_schemes == frozenset()


def test_the_distribution_without_earlier_siblings() -> None:
    """Only siblings from the same row are taken out."""
    tree = TokenTree(
        torch.tensor([9, 0, 1, 0, 2]), torch.tensor([-1, 0, 0, 0, 0]), DISTRIBUTIONS, torch.tensor([-1, 0, 0, 1, 1]),
        torch.tensor([False, True, True, True, True]),
    )  # fmt: skip
    distributions = [tree.draft_probs_of(node) for node in range(1, 5)]
    expected = [DISTRIBUTIONS[0], torch.tensor([0, 0.6, 0.4]), DISTRIBUTIONS[1], torch.tensor([0, 1 / 3, 2 / 3])]
    for distribution, wanted in zip(distributions, expected, strict=True):
        assert distribution is not None
        torch.testing.assert_close(distribution, wanted)
    assert DISTRIBUTIONS[0].tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_batched_distributions_are_those_of_the_trees() -> None:
    first = TokenTree(**PAIR, draft_probs=DISTRIBUTIONS[:1], draft_index=INDEX, is_without_replacement=FLAGS)
    second = TokenTree(**PAIR, draft_probs=DISTRIBUTIONS, draft_index=torch.tensor([-1, 1, -1]), is_width_fixed=False)
    batch = TreeBatch.from_trees([first, tree_of([-1, 0]), second])
    assert not batch.is_width_fixed
    assert batch.sampling_schemes == {WITHOUT_REPLACEMENT, SELECTED, MIXED}
    for tree, row in ((first, 0), (second, 2)):
        for node in (1, 2):
            probs, batched = tree.draft_probs_of(node), batch.trees[row].draft_probs_of(node)
            assert (probs is None and batched is None) or (
                probs is not None and batched is not None and probs.equal(batched)
            )


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": torch.tensor([9, 1, 2])}, r"tokens must be int64 \[B, N\]"),
        ({"parents": torch.tensor([[-1, 0]])}, "parents must be"),
        ({"draft_probs": DISTRIBUTIONS}, "come together"),
        ({"draft_index": torch.tensor([[-1, 0, 0]])}, "come together"),
        (
            {"draft_probs": DISTRIBUTIONS.unsqueeze(0), "draft_index": torch.tensor([[-1, 0, 0]])},
            r"draft_probs must be float \[R, V\]",
        ),
    ],
)
def test_wrong_batches_raise(changes: dict, message: str) -> None:
    good = {"tokens": torch.tensor([[9, 1, 2]]), "parents": torch.tensor([[-1, 0, 0]])}
    TreeBatch(**good)
    with pytest.raises(InvalidTreeError, match=message):
        TreeBatch(**{**good, **changes})


def test_batches_of_nothing_or_of_unlike_vocabularies_raise() -> None:
    for trees in ([], [None], TokenTree.chain([1])):
        with pytest.raises(InvalidTreeError, match="at least one TokenTree"):
            TreeBatch.from_trees(trees)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidTreeError, match="share V"):
        TreeBatch.from_trees(
            [TokenTree.chain([9, 1], DISTRIBUTIONS[:1]), TokenTree.chain([9, 1], torch.full((1, 4), 0.25))]
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"parents": [[-1, 2, 0]]},
        {"parents": [[-1, -1, 0]]},
        {"parents": [[0, 0, 0]]},
        {"parents": [[-1, -2, 0]]},
        {"parents": [[-1, 0, 9]]},
        {"parents": [[-1, 0, -5]]},
        {"tokens": [[9, 1, 3]]},
        {"tokens": [[9, 1, -1]]},
        {"draft_index": [[-1, 0, 2]]},
        {"draft_index": [[-1, 0, -2]]},
        {"draft_probs": [[0.5, 0.3, 0.1], [1.0, 0.0, 0.0]]},
        {"draft_probs": [[0.5, 0.3, 0.2], [1.5, -0.5, 0.0]]},
        {"draft_probs": [[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]},
        {"draft_probs": [[0.5, 0.3, 0.2], [float("nan"), 0.5, 0.5]]},
        {"tokens": [[9, 1, 1]], "is_without_replacement": [[False, True, True]]},
    ],
)
def test_the_flag_of_a_batch_sees_what_construction_of_a_tree_sees(changes: dict) -> None:
    batch = TreeBatch.from_trees([TokenTree(**PAIR, draft_probs=DISTRIBUTIONS, draft_index=INDEX)])
    assert bool(batch.is_valid)
    assert not dataclasses.replace(batch, **{name: torch.tensor(value) for name, value in changes.items()}).is_valid


def test_the_flag_lets_the_same_token_be_drawn_again_where_it_may() -> None:
    """From another row, below another parent, or with replacement."""
    tree = TokenTree(
        torch.tensor([9, 1, 1, 1, 2]), torch.tensor([-1, 0, 0, 1, 1]), DISTRIBUTIONS, torch.tensor([-1, 0, 1, 0, 0]),
        torch.tensor([False, True, True, True, True]),
    )  # fmt: skip
    assert bool(TreeBatch.from_trees([tree]).is_valid)
    assert bool(
        TreeBatch.from_trees([TokenTree(torch.tensor([9, 1, 1]), PAIR["parents"], DISTRIBUTIONS, INDEX)]).is_valid
    )


def test_ancestor_mask_of_a_deep_chain() -> None:
    size = 70
    parents = torch.arange(-1, size - 1).unsqueeze(0)
    assert ancestor_mask(parents)[0].equal(torch.ones(size, size, dtype=torch.bool).tril())


def test_num_accepted_leaves_out_the_root() -> None:
    assert Verdict((0, 2, 5), 7, is_bonus=True).num_accepted == 2
    assert Verdict((0,), 7, is_bonus=False).num_accepted == 0
