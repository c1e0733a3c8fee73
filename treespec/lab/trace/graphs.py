"""Recorded trees as networkx graphs, for GraphML, node-link JSON and tools that read them."""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import networkx

from treespec.errors import ConfigError
from treespec.lab.trace.records import TracedStep


def to_networkx(step: TracedStep, texts: Mapping[int, str] | None = None) -> networkx.DiGraph:
    """A step's tree, parent to child; attributes that are not known are left out.

    Nodes have `token`, `depth`, `is_accepted`, and where known `text` (by `texts`), `draft_prob`, `target_prob` and
    `drafters` (names, separated by commas). The graph has `step`, `row`, `context`, `rule` and `next_token`.
    """
    graph = step.tree().to_networkx()
    graph.graph.update(step=step.step, row=step.row, context=step.context, rule=step.rule, next_token=step.next_token)
    for node, token in enumerate(step.tokens):
        drafters = [name for name, nodes in step.drafters.items() if node in nodes]
        known = {
            "text": (texts or {}).get(token),
            "draft_prob": step.draft_probs[node],
            "target_prob": step.target_probs[node],
            "drafters": ",".join(drafters) or None,
        }
        known = {name: value for name, value in known.items() if value is not None}
        graph.add_node(node, is_accepted=node in step.path, **known)
    return graph


def write_graph(graph: networkx.DiGraph, path: str | PathLike[str]) -> None:
    """Write a graph as `*.graphml` or as node-link `*.json`. Raises `ConfigError`: another suffix."""
    suffix = Path(path).suffix
    if suffix == ".graphml":
        networkx.write_graphml(graph, path)
    elif suffix == ".json":
        Path(path).write_text(json.dumps(networkx.node_link_data(graph, edges="edges"), indent=1) + "\n")
    else:
        raise ConfigError(f"a graph is written to *.graphml or to *.json (node-link), got {path}")
