"""How well suffix lookup's confidence is calibrated: how often the only known continuation of an ending comes again, by
the number of tokens that match.

The longest ending is looked up at every position of texts that SmolLM2-135M continued greedily, in the text so far and
in those that ship with treespec. Along the text's own path every only continuation is compared with what came.

    python -m benchmarks.lookup.suffix_confidence --spec-bench question.jsonl
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.common import prompts
from benchmarks.common.drafters import warm_store
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from benchmarks.tree_vs_chain.cells import Models
from treespec.drafters.lookup.suffix_store import SuffixStore
from treespec.drafters.lookup.suffix_text import SuffixText, TrieNode
from treespec.hf.loading import smollm2

MAX_MATCH, MAX_LENGTH, NUM_LEVELS = 16, 6, 8
"""The longest ending looked up; longer ones than `MAX_LENGTH` count together; levels below every position."""


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    run = settings(seed=args.seed, prompts=args.prompts, new_tokens=args.new_tokens)
    models = Models(*smollm2.load())
    chosen = prompts.mixed(args.prompts, args.spec_bench)
    texts = models.texts(chosen, 0.0, args.new_tokens, args.seed)
    hits, trials = Counter[int](), Counter[int]()
    for text in track(texts, "looking up"):
        for length, is_hit in only_continuations(text.ids.tolist(), text.start, warm_store()):
            hits[min(length, MAX_LENGTH)] += is_hit
            trials[min(length, MAX_LENGTH)] += 1
    run["load_average_after"] = load_average()
    write_json(RESULTS / "lookup" / "suffix_confidence.json", {"run": run, "hits": hits, "trials": trials})
    text = report(hits, trials) + "\n" + settings_lines(run)
    (RESULTS / "lookup" / "suffix_confidence.md").write_text(text)
    print(text)


def only_continuations(ids: Sequence[int], start: int, store: SuffixStore) -> Iterator[tuple[int, bool]]:
    """(matching tokens, whether it came again) of only continuations at every position of a text from `start` on."""
    for position in range(start, len(ids)):
        row = SuffixText(ids[:position])
        ending = row.ending(MAX_MATCH)
        for text, found in ((row, row.find(ending, len(row) - 1)), (store.text, store.find(ending))):
            if not found:
                continue
            at = TrieNode(text, text.ends(found[-1]), len(found), smoothing=0.0)
            for token in ids[position : position + NUM_LEVELS]:
                children = {child: (prob, behind) for prob, child, behind in at.children()}
                if len(children) == 1:
                    yield at.length, token in children
                if token not in children:
                    break
                at = children[token][1]


def report(hits: Counter[int], trials: Counter[int]) -> str:
    rows = [
        [
            f"{m} or more" if m == MAX_LENGTH else str(m),
            str(trials[m]),
            f"{hits[m] / trials[m]:.2f}",
            f"{m / (m + 1):.2f}",
        ]
        for m in sorted(trials)
    ]
    table = markdown_table(["matching tokens m", "only continuations", "came again", "m / (m + 1)"], rows)
    return f"# How often an only continuation comes again\n\n{table}"


def _arguments() -> argparse.Namespace:
    options = parser("How often what always followed an ending comes again.", threads=1)
    options.add_argument("--prompts", type=int, default=60)
    options.add_argument("--new-tokens", type=int, default=56)
    options.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl; without it two sources are used")
    return options.parse_args()


if __name__ == "__main__":
    main()
