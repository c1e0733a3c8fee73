"""Small trees: a root with two children of every sampling scheme, what can be wrong with one, and random ones."""

import networkx as nx
import torch
from hypothesis import strategies as st

from treespec.tree import TokenTree, TreeBatch

DISTRIBUTIONS = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
PAIR = {"tokens": torch.tensor([0, 1, 2]), "parents": torch.tensor([-1, 0, 0])}
"""A root with two children."""


def pair_tree(index: list[int] | None, flags: list[bool] | None = None, **options) -> TokenTree:
    """The pair, drawn from rows `index` of DISTRIBUTIONS, those flagged without replacement; None: selected."""
    probs = DISTRIBUTIONS if index else None
    drawn = (torch.tensor([-1, *index]) if index else None, torch.tensor([False, *flags]) if flags else None)
    return TokenTree(**PAIR, draft_probs=probs, draft_index=drawn[0], is_without_replacement=drawn[1], **options)


def pair(index: list[int] | None, flags: list[bool] | None = None, **options) -> TreeBatch:
    return TreeBatch.from_trees([pair_tree(index, flags, **options)])


SELECTED, IID, MIXED, WITHOUT_REPLACEMENT = pair(None), pair([0, 0]), pair([0, -1]), pair([0, 0], [True, True])

WRONG_VALUES = [
    ({"parents": [0, 0, 0]}, "node 0 must be the root"),
    ({"parents": [-1, -1, 0]}, "second root"),
    ({"parents": [-1, 2, 0]}, "before its child"),
    ({"parents": [-1, 1, 0]}, "before its child"),
    ({"parents": [-1, -2, 0]}, "before its child"),
    ({"parents": [-1, 0, -5]}, "before its child"),
    ({"parents": [-1, 0, 3]}, "before its child"),
    ({"draft_index": [-1, 0, 2]}, r"-1 at the root and in \[-1, 2\)"),
    ({"draft_index": [-1, 0, -2]}, r"in \[-1, 2\)"),
    ({"draft_probs": [[0.5, 0.3, 0.1], [1.0, 0.0, 0.0]]}, "distribution 0 is not a probability distribution.*0.9"),
    ({"draft_probs": [[0.5, 0.3, 0.2], [1.0, 0.5, -0.5]]}, "distribution 1 .*sum to 1, least -0.5"),
    ({"draft_probs": [[0.5, 0.3, 0.2], [1.0, float("nan"), 0.0]]}, "distribution 1 is not a probability distribution"),
    ({"draft_probs": [[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]}, "node 1 carries token 1, which .* probability zero"),
    ({"tokens": [0, 1, 3]}, "node 2 carries token 3"),
    ({"tokens": [0, 1, -1]}, "node 2 carries token -1"),
    ({"tokens": [0, 1, 1], "is_without_replacement": [False, True, True]}, "node 2 carries token 1"),
]
"""Values that no drawn pair can have, and the error that `TokenTree` raises."""


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
