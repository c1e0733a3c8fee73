"""Write README's tables of times from the committed results of the peers.

    python -m benchmarks.readme_table

They stand between `<!-- peers -->` and `<!-- /peers -->`. `tests/benchmarks/test_readme_table.py` compares README with
the file.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.estimates import ratio
from benchmarks.common.settings import RESULTS, markdown_table
from benchmarks.peers.contestants import OPTIMIZED, PLAIN, title
from benchmarks.peers.report import complete, ms_per_token

README = Path(__file__).parents[1] / "README.md"
PEERS = "peers/peers.json"
PART = re.compile(r"(<!-- peers -->\n).*?(<!-- /peers -->)", re.DOTALL)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    README.write_text(written(README.read_text()))


def written(text: str) -> str:
    """README's text with the part between the marks as the results have it."""
    part = peers_part(json.loads((RESULTS / PEERS).read_text()))
    text, count = PART.subn(lambda found: found[1] + part + found[2], text)
    if count != 1:
        raise ValueError(f"README.md has {count} parts between <!-- peers --> and <!-- /peers -->, expected one")
    return text


def peers_part(data: dict[str, Any]) -> str:
    """A table per temperature."""
    lines = []
    for cell, found in data["found"].items():
        prompts, run = complete(found["prompts"]), found["run"]
        times = {name: ms_per_token(prompts, name) for name in next(iter(prompts.values()))}
        rows = [
            [
                title(name),
                f"{np.median(ms):.1f}",
                *(f"{ratio(times[plain], ms).value:.2f}" for plain in (PLAIN, OPTIMIZED)),
            ]
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
