"""Recorded trees as graphs."""

import json

import networkx
import pytest
from helpers.traced import record

from treespec.errors import ConfigError
from treespec.lab.trace import to_networkx, write_graph


def test_a_recorded_tree_survives_both_formats(tmp_path):
    _, speculation, trace = record(tmp_path / "run.jsonl")
    step, tree = trace.steps[1], speculation.steps[1].trees[0]
    graph = to_networkx(step, {step.tokens[1]: "<é>"})
    assert networkx.is_arborescence(graph)
    assert set(graph.edges) == set(tree.to_networkx().edges)
    assert graph.nodes[1]["text"] == "<é>"
    assert [node for node in graph if graph.nodes[node]["is_accepted"]] == step.path
    for suffix in ("graphml", "json"):
        write_graph(graph, tmp_path / f"tree.{suffix}")
    read = networkx.read_graphml(tmp_path / "tree.graphml", node_type=int)
    linked = networkx.node_link_graph(json.loads((tmp_path / "tree.json").read_text()), edges="edges")
    for other in (read, linked):
        assert dict(other.nodes(data=True)) == dict(graph.nodes(data=True))
        assert set(other.edges) == set(graph.edges)
    with pytest.raises(ConfigError, match="graphml"):
        write_graph(graph, tmp_path / "tree.dot")
