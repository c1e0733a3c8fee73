"""The curve of a run of `on_gpu`, tokens read against acceptance, as a table and a picture.

python -m recipes.smollm2_head.curve runs/curve.jsonl --output benchmarks/results/training/curve.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from treespec.lab.tables import markdown_table

MEASURES = {
    "acceptance": "first choice right, T = 0",
    "chain_4": "chain of 4, T = 0",
    "tree_16": "fixed tree of 16, T = 0",
    "overlap": "shared mass",
    "sampled_chain_4": "chain of 4, T = 1, expected",
}


def read(path: Path) -> list[dict[str, Any]]:
    """One evaluation per line: the steps, the tokens read, and `MEASURES`."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {"step": line["step"], "tokens": line["tokens"]}
        | {name: round(line[name], 4) for name in ("acceptance", "tree_16", "overlap")}
        | {"chain_4": round(line["chain"]["4"], 4), "sampled_chain_4": round(line["sampled_chain"]["4"], 4)}
        for line in lines
    ]


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Tokens per round and acceptance, over millions of tokens read."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    rounds, shares = figure.subplots(1, 2)
    for name, label in MEASURES.items():
        axis = shares if name in ("acceptance", "overlap") else rounds
        axis.plot([line["tokens"] / 1e6 for line in lines], [line[name] for line in lines], marker="o", label=label)
    for axis, label in ((rounds, "tokens per round"), (shares, "share")):
        axis.set(xlabel="million tokens read", ylabel=label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curve", type=Path)
    parser.add_argument("--about", default="", help="a sentence: the texts, the machine")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    lines = read(args.curve)
    last = json.loads(args.curve.read_text().splitlines()[-1])
    data = {"about": args.about, "curve": lines, "last": last}
    args.output.write_text(json.dumps(data, indent=1) + "\n")
    rows = [[f"{line['tokens'] / 1e6:.1f}", *(f"{line[name]:.3f}" for name in MEASURES)] for line in lines]
    table = markdown_table(["million tokens read", *MEASURES.values()], rows)
    args.output.with_suffix(".md").write_text(f"# A head's training\n\n{args.about}\n\n{table}\n")
    draw(lines, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
