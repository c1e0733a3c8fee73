"""Draw docs/assets/ancestor_matrix.svg: `python docs/tools/ancestor_matrix.py`.

The causal matrix of a chunk and the ancestor matrix of a tree, as layers with a state read them.
"""

import argparse
import re
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

from treespec import TokenTree

ROOT = Path(__file__).parents[2]
SETTINGS = {"svg.hashsalt": "treespec", "svg.fonttype": "none"}
PATHS = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


def matrices() -> dict[str, torch.Tensor]:
    """By its title, which tokens or nodes a row reads."""
    tree = TokenTree.from_paths(PATHS, tokens=range(len(PATHS) + 1))
    return {
        "a chunk of a text: causal": TokenTree.chain(range(tree.num_nodes)).ancestor_mask(),
        "a tree: ancestors": tree.ancestor_mask(),
    }


def draw(path: Path) -> None:
    """The number in a cell says over how many tokens the state has decayed between the two."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(7, 3.4))
        for axes, (title, mask) in zip(figure.subplots(1, 2), matrices().items(), strict=True):
            depths = mask.sum(1)
            axes.imshow(mask, cmap="Greens", vmin=0, vmax=1.6)
            for row, column in mask.nonzero().tolist():
                decay = int(depths[row] - depths[column])
                axes.text(column, row, str(decay), ha="center", va="center", fontsize=8)
            axes.set_title(title, fontsize=10)
            axes.set(xticks=range(len(mask)), yticks=range(len(mask)))
            axes.tick_params(length=0, labelsize=8)
        figure.savefig(path, bbox_inches="tight")
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", path.read_text(), flags=re.DOTALL)
    path.write_text(re.sub(r"[ \t]+\n", "\n", text))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    picture = ROOT / "docs/assets/ancestor_matrix.svg"
    parser.add_argument("--output", type=Path, default=picture, help="default: %(default)s")
    draw(parser.parse_args().output)
