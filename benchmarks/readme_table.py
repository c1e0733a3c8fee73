"""Write README's tables of times from the committed results of the demo and the peers.

    python -m benchmarks.readme_table

They stand between `<!-- demo -->` and `<!-- /demo -->`, `<!-- peers -->` and `<!-- /peers -->`; without results
the part is left empty. `tests/benchmarks/test_readme_table.py` compares README with the files.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.estimates import ratio
from benchmarks.common.settings import RESULTS, markdown_table
from benchmarks.peers.contestants import OPTIMIZED, PLAIN, title
from benchmarks.peers.report import complete, ms_per_token

README = Path(__file__).parents[1] / "README.md"
DEMO, PEERS = "demo/results.json", "peers/peers.json"
DEMO_TITLES = {"plain generate": "plain `generate`", "transformers' prompt lookup": "transformers' prompt lookup"}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    README.write_text(written(README.read_text()))


def written(text: str) -> str:
    """README's text with the parts between the marks as the results have them."""
    for name, part in parts().items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(pattern, lambda found, part=part: found[1] + part + found[2], text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"README.md has {count} parts between <!-- {name} --> and <!-- /{name} -->, expected one")
    return text


def parts() -> dict[str, str]:
    makers = {"demo": (DEMO, demo_part), "peers": (PEERS, peers_part)}
    files = {name: (RESULTS / file, make) for name, (file, make) in makers.items()}
    return {name: make(json.loads(path.read_text())) if path.is_file() else "" for name, (path, make) in files.items()}


def demo_part(data: dict[str, Any]) -> str:
    """Medians over prompts of the medians over rounds; the last contestant with its speed."""
    runs, rows = data["runs"], []
    for name, prompts in runs.items():
        ms = [1e3 * median(run["seconds"]) / run["num_tokens"] for run in prompts.values()]
        passes = [run["num_tokens"] / median(run["num_passes"]) for run in prompts.values()]
        title = DEMO_TITLES.get(name, name.removeprefix("treespec, "))
        speed = f" ({demo_speed(data):.2f} times as fast as plain)" if name == [*runs][-1] else ""
        rows.append([title, f"{median(ms):.1f}{speed}", f"{median(passes):.2f}"])
    return markdown_table(["", "ms per token", "tokens per target pass"], rows)


def demo_speed(data: dict[str, Any]) -> float:
    """The last contestant's speed against plain: the median over prompts of the median ratio over rounds."""
    plain, mine = data["runs"]["plain generate"], [*data["runs"].values()][-1]
    return median(
        median(
            (other / plain[name]["num_tokens"]) / (own / mine[name]["num_tokens"])
            for own, other in zip(mine[name]["seconds"], plain[name]["seconds"], strict=True)
        )
        for name in plain
    )


def peers_part(data: dict[str, Any]) -> str:
    """A table per temperature."""
    lines = []
    for cell, found in data["found"].items():
        prompts, run = complete(found["prompts"]), found["run"]
        times = {name: ms_per_token(prompts, name) for name in next(iter(prompts.values()))}
        rows = [
            [title(name), f"{np.median(ms):.1f}", *(ratio(times[plain], ms).text() for plain in (PLAIN, OPTIMIZED))]
            for name, ms in sorted(times.items(), key=lambda item: -np.median(item[1]))
        ]
        lines += [
            f"{len(prompts)} held-out prompts, {run['new_tokens']} new tokens, {cell}, PyTorch's threads: "
            f"{run['threads']}, reading the prompt left out "
            f"([`peers.md`](benchmarks/results/peers/peers.md), `{run['command'].split(' --')[0]}`):\n",
            markdown_table(["", "ms per token", "times plain", "times plain, optimized"], rows),
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
