"""Draw the import graph of docs/architecture.md: `python docs/tools/import_graph.py`."""

import argparse
import re
from pathlib import Path

import grimp
import matplotlib
import networkx as nx
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
SETTINGS = {"svg.hashsalt": "treespec", "svg.fonttype": "none"}


def packages() -> nx.DiGraph:
    """The packages with their `lines`, and an edge to each that is imported and that no other edges imply."""
    imports = grimp.build_graph("treespec", exclude_type_checking_imports=True)
    graph = nx.DiGraph()
    for package in sorted(imports.find_children("treespec")):
        path = ROOT / package.replace(".", "/")
        files = [*path.rglob("*.py")] if path.is_dir() else [path.with_suffix(".py")]
        lines = sum(len(file.read_text().splitlines()) for file in files)
        graph.add_node(package.removeprefix("treespec."), lines=lines)
    for module in imports.modules:
        for other in imports.find_modules_directly_imported_by(module):
            ends = [name.split(".")[1] for name in (module, other) if "." in name]
            if len(set(ends)) == 2:
                graph.add_edge(*ends)
    lines = dict(graph.nodes(data="lines"))
    reduced = nx.transitive_reduction(graph)
    nx.set_node_attributes(reduced, lines, "lines")
    return reduced


def draw(path: Path) -> None:
    """Draw importing packages above those that they import; a box says how many lines a package has."""
    graph = packages()
    for layer, names in enumerate(nx.topological_generations(graph)):
        for name in names:
            graph.nodes[name]["layer"] = -layer
    positions = nx.multipartite_layout(graph, subset_key="layer", align="horizontal")
    labels = {name: f"{name}\n{lines:,}" for name, lines in graph.nodes(data="lines")}
    with matplotlib.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(8, 10))
        nx.draw_networkx_edges(graph, positions, ax=axes, edge_color="#8a8a8a", node_size=1300, arrowsize=9)
        box = {"boxstyle": "round,pad=0.35", "facecolor": "#e8f0ea", "edgecolor": "#3d6b4f"}
        nx.draw_networkx_labels(graph, positions, labels, ax=axes, font_size=8, bbox=box)
        axes.set_axis_off()
        axes.margins(0.08)
        figure.savefig(path, bbox_inches="tight")
        plt.close(figure)
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", path.read_text(), flags=re.DOTALL)
    path.write_text(re.sub(r"[ \t]+\n", "\n", text))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    picture = ROOT / "docs/assets/import_graph.svg"
    parser.add_argument("--output", type=Path, default=picture, help="default: %(default)s")
    draw(parser.parse_args().output.resolve())
