"""Write README's table of times and the numbers in the pages' sentences from the committed results.

    python -m benchmarks.readme_table

The table stands between `<!-- peers -->` and `<!-- /peers -->`, the sentences are those of `docs/tools/quotes.toml`.
`tests/benchmarks/test_readme_table.py` compares the pages with the results.
"""

import argparse
import json
import re
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.common.settings import RESULTS, markdown_table
from benchmarks.peers.contestants import OPTIMIZED, PLAIN, title
from benchmarks.peers.report import complete, ms_per_token, runs_of_one, speed
from docs.tools.quotes import QUOTES, ROOT, quoting

README = "README.md"
PEERS = "peers/peers.json"
PART = re.compile(r"(<!-- peers -->\n).*?(<!-- /peers -->)", re.DOTALL)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for page in QUOTES:
        (ROOT / page).write_text(written(page, (ROOT / page).read_text()))


def written(page: str, text: str) -> str:
    """A page's text as the results have it: its sentences, and in README the part between the marks."""
    text = quoting(page, text)
    if page != README:
        return text
    part = peers_part(json.loads((RESULTS / PEERS).read_text()))
    text, count = PART.subn(lambda found: found[1] + part + found[2], text)
    if count != 1:
        raise ValueError(f"README.md has {count} parts between <!-- peers --> and <!-- /peers -->, expected one")
    return text


def peers_part(data: dict[str, Any]) -> str:
    """A row per contestant, the slowest first, with three columns per temperature; how many outputs are plain's."""
    cells = {cell: (complete(found["prompts"]), found["run"]) for cell, found in data["found"].items()}
    columns = {cell: _times(prompts) for cell, (prompts, _) in cells.items()}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    empty = [""] * 3
    rows = [[title(name), *(text for own in columns.values() for text in own.get(name, empty))] for name in names]
    about = "; ".join(
        f"{cell}, {len(prompts)} held-out prompts, {run['new_tokens']} new tokens, {run['threads']} thread"
        for cell, (prompts, run) in cells.items()
    )
    headings = [f"{cell}: {what}" for cell in cells for what in ("ms per token", "times plain", "times optimized")]
    command = next(iter(cells.values()))[1]["command"].split(" --")[0]
    source = f"[`peers.md`](benchmarks/results/peers/peers.md), `{command}`"
    table = markdown_table(["", *headings], rows)
    return f"{about}; reading the prompt left out ({source}):\n\n{table}\n{_outputs(data['found'])}\n"


def _outputs(found: dict[str, Any]) -> str:
    """How many greedy outputs, of all cells, are plain's."""
    runs = (run for cell in found.values() for runs in complete(cell["prompts"]).values() for run in runs.values())
    counts = Counter(run["agreement"] for run in runs if "agreement" in run)
    others = {"tie": "differ after a tie of its two best logits", "different": "are wrong"}
    parts = [f"{counts['identical']:,} of {counts.total():,} greedy outputs are identical to plain's"]
    return ", ".join([*parts, *(f"{counts[kind]} {words}" for kind, words in others.items() if counts[kind])]) + "."


def _times(prompts: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """By contestant, the slowest first: milliseconds per token, and speed in times of both kinds of plain decoding."""
    median = {name: float(np.median(ms_per_token(prompts, name))) for name in runs_of_one(prompts)}
    return {
        name: [f"{ms:.1f}", *(speed(prompts, name, plain).split()[0] for plain in (PLAIN, OPTIMIZED))]
        for name, ms in sorted(median.items(), key=lambda item: -item[1])
    }


if __name__ == "__main__":
    main()
