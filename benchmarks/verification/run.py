"""Acceptance of every verification rule, and its share of the optimum.

Two parts: `node` (one node with k children) and `trees` (whole trees of 8, 16 and 32 nodes), both on synthetic
distributions and on distributions of SmolLM2-135M and a draft of it (see `benchmarks.common.recorded`). Acceptance is
exact in the rules' coins: every outcome of a rule on a drafted tree is enumerated, so all spread is that of contexts
and drafted trees, the same for all rules. Finished contexts are kept in the user's cache folder, and a run that was
stopped goes on where it was.

    OMP_NUM_THREADS=1 python -m benchmarks.verification
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
    SyntheticDistributions,
    accepted_by_rule,
    grow,
    inner_contexts,
    sampled_bound,
    target_paths,
)
from benchmarks.common.recorded import RecordedDistributions, Text, prompts, without_layers, write_texts
from benchmarks.common.settings import RESULTS, digest, load_average, parser, settings, write_json
from benchmarks.verification.report import BOUND, OPTIMUM, draw, report
from treespec.cpu import prepack_linears
from treespec.hf import TreeScorer
from treespec.hf.loading import smollm2
from treespec.lab.store import Store
from treespec.literature.optimum import optimum_iid, optimum_mixed, optimum_selected, optimum_without_replacement
from treespec.literature.transport import MAX_SUPPORT
from treespec.policies import KAry
from treespec.sampling import normalise, truncate_probs
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT

TEMPERATURES = (1.0, 0.6)
SIZES = (8, 16, 32)
WIDTHS = (1, 2, 4, 8)
TEXTS_PER_PASS = 8
SYNTHETIC, REAL = "synthetic", smollm2.NAME
DISTRIBUTIONS = "distributions"

Rules = dict[str, float]
Samples = dict[str, list[float]]
"""One number per context, by rule; `optimum` and `bound` are keys next to the rules."""

NODES: dict[str, Kind] = {
    SELECTED: Kind(lambda k: KAry((k,), SELECTED), siblings=SELECTED, is_deterministic=True),
    "i.i.d.": Kind(lambda k: KAry((k,), IID), siblings=IID),
    "without replacement": Kind(lambda k: KAry((k,), WITHOUT_REPLACEMENT), siblings=WITHOUT_REPLACEMENT),
    "mixed": Kind(lambda k: KAry((k,), MIXED), siblings=MIXED),
    f"i.i.d., draft's top {MAX_SUPPORT}": Kind(lambda k: KAry((k,), IID), MAX_SUPPORT, IID),
    f"without replacement, draft's top {MAX_SUPPORT}": Kind(
        lambda k: KAry((k,), WITHOUT_REPLACEMENT), MAX_SUPPORT, WITHOUT_REPLACEMENT
    ),
}


def node_optimum(kind: Kind, k: int, target: Tensor, draft: Tensor) -> float:
    """The most that any lossless rule accepts of k children drawn in this way."""
    if kind.support is not None:
        draft = truncate_probs(draft, kind.support)
    if kind.siblings == SELECTED:
        return float(optimum_selected(target, draft.topk(k).indices))
    if kind.siblings == IID:
        return float(optimum_iid(target, draft, k))
    if kind.siblings == WITHOUT_REPLACEMENT:
        return optimum_without_replacement(target, draft, k, tolerance=1e-4).value
    selected = draft.topk(k - 1).indices
    return float(optimum_mixed(target, normalise(draft.scatter(-1, selected, 0.0)), selected))


def measure_nodes(probs: Distributions, num_texts: int, num_draws: int, seed: int) -> list[dict[str, Rules]]:
    """For the root of each of the texts: accepted children by "k=.., kind" and rule, means over `num_draws` groups, and
    how alike the two distributions are, under `DISTRIBUTIONS`.
    """
    roots = [[(text,)] for text in range(num_texts)]
    pairs = [(probs.target(root)[0], probs.draft(root)[0]) for root in roots]
    found: list[dict[str, Rules]] = [{DISTRIBUTIONS: alike(*pair)} for pair in pairs]
    for k in WIDTHS:
        for name, kind in NODES.items():
            if (kind.support is not None and k > 2) or (kind.siblings == MIXED and k == 1):
                continue  # Optimal transport takes two siblings; one mixed child is an i.i.d. one.
            accepted = _mean_accepted(kind, k, probs, num_texts, num_draws, seed)
            for cells, rules, pair in zip(found, accepted, pairs, strict=True):
                cells[f"k={k}, {name}"] = {OPTIMUM: node_optimum(kind, k, *pair)} | rules
    return found


def alike(target: Tensor, draft: Tensor) -> Rules:
    """`sum min(P, q)`, and whether both have the same most likely token."""
    return {"overlap": float(torch.minimum(target, draft).sum()), "same_top": float(target.argmax() == draft.argmax())}


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


def measure_synthetic(args: argparse.Namespace, store: Store) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for temperature in TEMPERATURES:
        for part, count in (("node", args.positions), ("trees", args.contexts)):
            if part in args.parts:
                case = f"{part}, {SYNTHETIC}, T={temperature}"
                all_distributions = (SyntheticDistributions(seed, temperature) for seed in range(count))
                found |= measure_case(case, all_distributions, [1] * count, list(range(count)), args, store)
    return found


def measure_real(
    args: argparse.Namespace, store: Store, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cache: Path
) -> dict[str, Any]:
    draft = without_layers(model)
    pair = TreeScorer(model), TreeScorer(draft)
    found: dict[str, Any] = {}
    with prepack_linears(model), prepack_linears(draft):
        for temperature in TEMPERATURES:
            texts = write_texts(model, tokenizer, prompts(), temperature, args.new_tokens, args.seed, cache)
            for part, count in (("node", args.positions), ("trees", args.contexts)):
                if part in args.parts:
                    numbers, contexts = zip(*spread_contexts(texts, count), strict=True)
                    groups = [contexts[i : i + TEXTS_PER_PASS] for i in range(0, len(contexts), TEXTS_PER_PASS)]
                    all_distributions = (RecordedDistributions(*pair, group, temperature) for group in groups)
                    case = f"{part}, {REAL}, T={temperature}"
                    found |= measure_case(case, all_distributions, list(map(len, groups)), numbers, args, store)
    return found


def measure_case(
    case: str,
    all_distributions: Iterable[Distributions],
    sizes: Sequence[int],
    texts: Sequence[int],
    args: argparse.Namespace,
    store: Store,
) -> dict[str, Any]:
    """The contexts of a case side by side.

    Args:
        all_distributions: distributions below `sizes[i]` contexts each; they are computed when they are asked for.
        texts: which text each context is from, kept with how alike the distributions are there.
    """
    found: list[dict[str, Rules]] = []
    for number, (probs, size) in enumerate(zip(track(all_distributions, case, len(sizes)), sizes, strict=True)):
        found += store.get(
            f"{case}, {number}", lambda probs=probs, size=size, number=number: _measure(case, probs, size, args, number)
        )
    cells = gather(found)
    probs = cells.pop(DISTRIBUTIONS, None)
    return {case: cells} if probs is None else {case: cells, f"contexts, {case}": {"text": list(texts), **probs}}


def _measure(
    case: str, probs: Distributions, num_texts: int, args: argparse.Namespace, seed: int
) -> list[dict[str, Rules]]:
    if case.startswith("node"):
        return measure_nodes(probs, num_texts, args.draws, seed)
    return measure_trees(probs, num_texts, args.draws, args.bound_paths, seed)


def spread_contexts(texts: list[Text], count: int) -> Iterator[tuple[int, torch.Tensor]]:
    """`count` prefixes over all texts, evenly, each after the number of its text."""
    for number, text in enumerate(texts):
        share = (number + 1) * count // len(texts) - number * count // len(texts)
        yield from ((number, ids) for ids in text.contexts(share))


def options() -> argparse.ArgumentParser:
    found = parser("Acceptance and share of the optimum of every verification rule.", threads=1)
    found.add_argument("--parts", nargs="+", choices=["node", "trees"], default=["node", "trees"])
    found.add_argument("--positions", type=int, default=120, help="pairs of distributions per temperature")
    found.add_argument("--contexts", type=int, default=104, help="contexts of whole trees per temperature")
    found.add_argument("--draws", type=int, default=2, help="drafted trees per context and kind")
    found.add_argument("--bound-paths", type=int, default=8, help="target paths per context for the whole-tree bound")
    found.add_argument("--new-tokens", type=int, default=64, help="tokens sampled after each prompt")
    return found


def main() -> None:
    args = options().parse_args()
    torch.set_num_threads(args.threads)
    cache = smollm2.converted_folder().parent / "verification"
    chosen = args.seed, args.draws, args.bound_paths, args.positions, args.contexts, args.new_tokens
    store = Store(cache / f"{digest(*chosen)}.jsonl")
    path = RESULTS / "verification" / "verification.json"
    run = settings(seed=args.seed, **{k: v for k, v in vars(args).items() if k not in ("parts", "threads", "seed")})
    start = time.perf_counter()
    found = measure_synthetic(args, store)
    model, tokenizer = smollm2.load()
    found |= measure_real(args, store, model, tokenizer, cache)
    run |= {"load_average_after": load_average(), "seconds": round(time.perf_counter() - start)}
    # Parts may be measured one by one: each keeps the circumstances of its own run.
    known = json.loads(path.read_text()) if path.is_file() else {"runs": {}, "results": {}}
    data = {"runs": known["runs"] | dict.fromkeys(args.parts, run), "results": known["results"] | found}
    write_json(path, data)
    text = report(data)
    (RESULTS / "verification" / "verification.md").write_text(text)
    draw(data, RESULTS / "verification" / "verification.png")
    print(text)
