"""Random trees by their parents, as token trees and as graphs of networkx."""

import networkx as nx
import torch
from hypothesis import strategies as st

from treespec.tree import TokenTree

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
