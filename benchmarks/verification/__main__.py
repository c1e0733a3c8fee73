"""Acceptance of every verification rule on whole trees of 8, 16 and 32 nodes, and its share of a bound for all.

Distributions are those of SmolLM2-135M and a draft of it (see `benchmarks.common.recorded`). Acceptance is exact in the
rules' coins: every outcome of a rule on a drafted tree is enumerated, so all spread is that of contexts and drafted
trees, the same for all rules. Finished contexts are kept in the user's cache folder, and a run that was stopped goes on
where it was.

    OMP_NUM_THREADS=1 python -m benchmarks.verification
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.common.acceptance import (
    TREES,
    Context,
    Distributions,
    Kind,
    accepted_by_rule,
    grow,
    inner_contexts,
    sampled_bound,
    target_paths,
)
from benchmarks.common.recorded import RecordedDistributions, Text, prompts, without_layers, write_texts
from benchmarks.common.settings import RESULTS, digest, load_average, parser, publish, settings
from benchmarks.verification.report import BOUND, report
from treespec.cpu import prepack_linears
from treespec.hf import TreeScorer
from treespec.lab import smollm2
from treespec.lab.store import Store

TEMPERATURES = (1.0, 0.6)
SIZES = (8, 16, 32)
TEXTS_PER_PASS = 8
DISTRIBUTIONS = "distributions"

Rules = dict[str, float]
Samples = dict[str, list[float]]
"""One number per context, by rule; `bound` is a key next to the rules."""


def measure_trees(
    probs: Distributions, num_texts: int, num_draws: int, num_bounds: int, seed: int
) -> list[dict[str, Rules]]:
    """For each of the texts: accepted tokens by "n=.., kind" and rule, means over `num_draws` trees, and how the two
    distributions are along paths of the target, under `DISTRIBUTIONS`.
    """
    depth = max(SIZES).bit_length() - 1
    paths = target_paths(probs, [text for text in range(num_texts) for _ in range(num_bounds)], depth, seed)
    paths = [paths[first : first + num_bounds] for first in range(0, len(paths), num_bounds)]
    found = [{DISTRIBUTIONS: likeness(probs, own)} for own in paths]
    for n in SIZES:
        for name, kind in TREES.items():
            for cells, rules, own in zip(
                found, _mean_accepted(kind, n, probs, num_texts, num_draws, seed), paths, strict=True
            ):
                if kind.siblings is not None:
                    rules[BOUND] = fmean(sampled_bound(kind, n, probs, path) for path in own)
                cells[f"n={n}, {name}"] = rules
    return found


def likeness(probs: Distributions, paths: Sequence[Context]) -> Rules:
    """Means over the inner nodes of paths: `sum min(P, q)`, and the entropy of the target in nats."""
    contexts = [path[:end] for path in paths for end in range(1, len(path))]
    pairs = list(zip(probs.target(contexts), probs.draft(contexts), strict=True))
    return {
        "overlap": fmean(float(torch.minimum(*pair).sum()) for pair in pairs),
        "entropy": fmean(float(torch.special.entr(target).sum()) for target, _ in pairs),
    }


def _mean_accepted(
    kind: Kind, size: int, probs: Distributions, num_texts: int, num_draws: int, seed: int
) -> list[dict[str, float]]:
    """The rules that support every tree: a distribution may by chance have few tokens, or a tree a single path."""
    num_trees = 1 if kind.is_deterministic else num_draws
    trees = grow(kind, size, probs, [text for text in range(num_texts) for _ in range(num_trees)], seed)
    probs.target([context for tree in trees for context in inner_contexts(tree).values()])  # All in one pass.
    found = [accepted_by_rule(tree, probs) for tree in trees]
    return [_common_means(found[first : first + num_trees]) for first in range(0, len(found), num_trees)]


def _common_means(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(rules[name] for rules in found) for name in found[0] if all(name in rules for rules in found)}


def gather(found: Iterable[dict[str, dict[str, float]]]) -> dict[str, Samples]:
    """By cell and rule, one number per context; rules that do not support all contexts are left out."""
    cells: dict[str, Samples] = {}
    for cell_of_context in found:
        for cell, rules in cell_of_context.items():
            for rule, value in rules.items():
                cells.setdefault(cell, defaultdict(list))[rule].append(value)
    full = {cell: max(map(len, rules.values())) for cell, rules in cells.items()}
    return {
        cell: {rule: values for rule, values in rules.items() if len(values) == full[cell]}
        for cell, rules in cells.items()
    }


def measure(
    args: argparse.Namespace, store: Store, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cache: Path
) -> dict[str, Any]:
    """By temperature the cells, and how the distributions are at the contexts."""
    draft = without_layers(model)
    pair = TreeScorer(model), TreeScorer(draft)
    found: dict[str, Any] = {}
    with prepack_linears(model), prepack_linears(draft):
        for temperature in TEMPERATURES:
            texts = write_texts(model, tokenizer, prompts(), temperature, args.new_tokens, args.seed, cache)
            numbers, contexts = zip(*spread_contexts(texts, args.contexts), strict=True)
            measured: list[dict[str, Rules]] = []
            for first in track(range(0, len(contexts), TEXTS_PER_PASS), key := f"T={temperature}"):
                group = contexts[first : first + TEXTS_PER_PASS]
                trees = partial(_measure_group, args, pair, group, temperature, first)
                measured += store.get(f"{key}, {first}", trees)
            cells = gather(measured)
            found[key] = {"contexts": {"text": list(numbers), **cells.pop(DISTRIBUTIONS)}, "cells": cells}
    return found


def _measure_group(
    args: argparse.Namespace, pair: Sequence[TreeScorer], group: Sequence[Tensor], temperature: float, seed: int
) -> list[dict[str, Rules]]:
    target, draft = pair
    probs = RecordedDistributions(target, draft, group, temperature)
    return measure_trees(probs, len(group), args.draws, args.bound_paths, seed)


def spread_contexts(texts: list[Text], count: int) -> Iterator[tuple[int, Tensor]]:
    """`count` prefixes over all texts, evenly, each after the number of its text."""
    for number, text in enumerate(texts):
        share = (number + 1) * count // len(texts) - number * count // len(texts)
        yield from ((number, ids) for ids in text.contexts(share))


def main() -> None:
    options = parser("Acceptance of every verification rule, and its share of the bound.", threads=1)
    options.add_argument("--contexts", type=int, default=104, help="contexts per temperature")
    options.add_argument("--draws", type=int, default=2, help="drafted trees per context and kind")
    options.add_argument("--bound-paths", type=int, default=8, help="target paths per context for the whole-tree bound")
    options.add_argument("--new-tokens", type=int, default=64, help="tokens sampled after each prompt")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    cache = smollm2.converted_folder().parent / "verification"
    chosen = {name: getattr(args, name) for name in ("seed", "contexts", "draws", "bound_paths", "new_tokens")}
    data, start = settings(**chosen), time.perf_counter()
    store = Store(cache / f"{digest(*chosen.values())}.jsonl")
    data["results"] = measure(args, store, *smollm2.load(), cache)
    data |= {"load_average_after": load_average(), "seconds": round(time.perf_counter() - start)}
    publish(RESULTS / "verification" / "verification.json", data, report(data))


if __name__ == "__main__":
    main()
