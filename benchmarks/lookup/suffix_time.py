"""What suffix lookup costs per step: looking up, growing the tree and adding the new tokens, by length of the context.

The context and what follows it are text that SmolLM2-135M-Instruct wrote by itself (the set that treespec ships); the
steps are those of greedy decoding, which goes on with the text whatever is proposed. The store holds the rest of the
set. Times are the processor's, and a step's is the least of several rounds of the same steps, so that other work on the
machine counts little.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec import SuffixLookup, SuffixStore, WarmStart
from treespec.hf.loading import smollm2
from treespec.policies import BestFirst
from treespec.protocols import History, Scores, Session, VerifiedStep
from treespec.sampling import NoProcessors
from treespec.tree import TokenTree, Verdict

CONTEXTS, NUM_NODES, PERIOD = (500, 2_000, 8_000, 32_000), 24, 80


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--tokens", type=int, default=2_000, help="decoded per case (default: %(default)s)")
    options.add_argument("--rounds", type=int, default=15, help="of the same steps (default: %(default)s)")
    options.add_argument("--out", type=Path, default=RESULTS / "lookup" / "suffix_time.json")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    start = WarmStart.shipped(smollm2.NAME)
    stream = torch.cat(list(start.texts)).tolist()
    load_before, cases = load_average(), []
    for length in CONTEXTS:
        needed = length + args.tokens
        periodic = (stream[:PERIOD] * (needed // PERIOD + 1))[:needed]
        for name, text, stored in (
            ("this text", stream[:needed], []),
            ("this text and the store", stream[:needed], [stream[needed:]]),
            (f"a text of period {PERIOD}, and the store", periodic, [stream[needed:]]),
        ):
            # A store of its own for every round: it would know the last one's text.
            stores = (SuffixStore(stored) if stored else None for _ in range(args.rounds))
            rounds, lengths = zip(*(replay(text, length, start.vocab_size, store) for store in stores), strict=True)
            times, num_emitted = [min(step) for step in zip(*rounds, strict=True)], lengths[0]
            cases.append({"context": length, "case": name, **summary(times, num_emitted)})
            print(cases[-1])
    data = settings(seed=args.seed, nodes=NUM_NODES, rounds=args.rounds, load_average_before=load_before)
    write_json(args.out, data | {"cases": cases})
    args.out.with_suffix(".md").write_text(report(data, cases))


def replay(
    text: Sequence[int], length: int, vocab_size: int, store: SuffixStore | None
) -> tuple[list[float], list[int]]:
    """Milliseconds of processor time and emitted tokens of every step, from `length` tokens to the end of the text."""
    history = History(torch.tensor([text[:length]]), torch.ones(1, length, dtype=torch.bool))
    generator, cpu = torch.Generator(), torch.device("cpu")
    lookup = SuffixLookup(store=store)
    lookup.start(
        Session(history, False, NoProcessors(), generator, cpu, vocab_size, row_ids=[0], policy=BestFirst(NUM_NODES))
    )
    times, num_emitted, no_scores = [], [], Scores(torch.empty(0))
    while (end := history.lengths[0]) < len(text):
        begun = time.thread_time()
        trees = lookup.propose(NUM_NODES)
        spent = time.thread_time() - begun
        path = accepted_path(trees.trees[0], text[end:])
        emitted = list(text[end : end + len(path)])
        history.append(0, emitted)
        step = VerifiedStep(trees, [Verdict(tuple(path), emitted[-1], True)], no_scores, [emitted])
        begun = time.thread_time()
        lookup.update(step)
        times.append(1e3 * (spent + time.thread_time() - begun))
        num_emitted.append(len(emitted))
    return times, num_emitted


def accepted_path(tree: TokenTree, text: Sequence[int]) -> list[int]:
    """The nodes of the longest path that agrees with the text, the root's included, at most as many as tokens."""
    path = [0]
    for token in text[:-1]:
        child = next((i for i in tree.children(path[-1]) if tree.token(i) == token), None)
        if child is None:
            break
        path.append(child)
    return path


def summary(times: list[float], num_emitted: list[int]) -> dict[str, Any]:
    quantiles = {f"p{q}_ms": round(float(np.percentile(times, q)), 4) for q in (95, 99)}
    return {
        "steps": len(times),
        "median_ms": round(median(times), 4),
        "mean_ms": round(mean(times), 4),
        **quantiles,
        "acceptance_length": round(mean(num_emitted), 3),
    }


def report(data: dict[str, Any], cases: list[dict[str, Any]]) -> str:
    columns = ("context", "case", "steps", "median_ms", "mean_ms", "p95_ms", "p99_ms", "acceptance_length")
    table = markdown_table([name.replace("_", " ") for name in columns], [[str(c[n]) for n in columns] for c in cases])
    load = f"Load average {data['load_average_before']} before, {data['load_average']} after. "
    return f"# Time of suffix lookup\n\n{__doc__}\n{table}\n{load}{settings_lines(data)}"


if __name__ == "__main__":
    main()
