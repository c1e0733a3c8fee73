"""Does sampling keep the target's distribution? A G-test of the joint distribution of three tokens through the whole
engine.

A real tiny target and draft model with a vocabulary of 8 decode batches of 2,000 rows from one prompt; the 512 possible
continuations are counted and compared with their exact probabilities, which plain uncached passes and transformers'
own processors give. Every rule is tried on the sampling schemes that it supports, plain and with temperature, top-p
and a repetition penalty, and every planted bug must be found.

Next to the p-value is an estimate of the total variation that noise does not inflate: one half of the batches says
which continuations come too often, and the other half by how much (see `cross_fitted_distance`).

Finished cases are kept in the user's cache folder: started again with the same options, an unfinished run goes on where
it stopped. Results: benchmarks/results/joint_distribution/.

    python -m benchmarks.joint_distribution [--batches 100] [--rows 2000] [--more | --heads]
"""

import argparse
import gc
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.common.settings import RESULTS, digest, load_average, markdown_table, parser, publish, settings
from benchmarks.joint_distribution.cases import (
    MIN_P,
    NUM_TOKENS,
    PROMPT,
    RAGGED,
    VOCAB_SIZE,
    WARPED,
    Case,
    Models,
    count_batch,
    exact_cells,
    more_cases,
    right_cases,
    start,
    tiny_models,
)
from benchmarks.joint_distribution.heads import head_cases
from benchmarks.joint_distribution.planted_bugs import planted_bugs
from treespec.commands.console import progress_bar
from treespec.lab import smollm2
from treespec.lab.store import Store
from treespec.testing import g_test

FOUND = 1e-6
"""A planted bug counts as found below this p-value."""
LEVEL = 0.01
"""The smallest p-value of all right cases must be above this, divided by their number (Bonferroni)."""
SMALL = 0.01
"""Planted bugs of a total variation below this need not be found."""
MIN_BUG_BATCHES = 4
"""A bug that is found at once runs for as many batches, so that its total variation can be estimated."""


def p_value(counts: np.ndarray, probs: np.ndarray, num_groups: int = 1) -> float:
    """The G-test's, of counts int64 [512] under `probs` float64 [512], or as many times that as there are prompts."""
    return g_test(dict(enumerate(counts.tolist())), dict(enumerate(probs.tolist())), num_groups)


def cross_fitted_distance(halves: np.ndarray, probs: np.ndarray) -> tuple[float, float]:
    """An estimate of the total variation between the sampled distribution and `probs` float64 [512], and its standard
    error.

    The distance is the largest excess of probability of any set of continuations. One half of the counts, int64
    [2, 512], picks the set and the other measures its excess, so the estimate errs on the small side only and is zero
    on average where the distributions agree; the plain distance of 200,000 samples from their own distribution is about
    0.01. The halves take both parts in turn; the two estimates are correlated, so the mean's error is given as that of
    one.
    """
    excesses, variances = [], []
    for picking, measuring in (halves, halves[::-1]):
        chosen = picking / picking.sum() > probs
        share = measuring[chosen].sum() / measuring.sum()
        excesses.append(share - probs[chosen].sum())
        variances.append(share * (1 - share) / measuring.sum())
    return float(np.mean(excesses)), float(np.sqrt(np.mean(variances)))


def run_case(
    case: Case, models: Models, num_batches: int, num_rows: int, seed: int = 0, progress: Progress | None = None
) -> dict[str, Any]:
    """Sample a case and test it; a planted bug only until it is found.

    Returns:
        name, bug, samples, p, total_variation and its standard_error, block_efficiency and seconds.
    """
    begin, probs = time.perf_counter(), exact_cells(case, models)
    speculation = start(case, models)
    halves = np.zeros((2, len(probs)), dtype=np.int64)
    task = None if progress is None else progress.add_task(case.name, total=num_batches)
    for batch in range(num_batches):
        halves[batch % 2] += count_batch(case, models, speculation, num_rows, seed + batch)
        if progress is not None and task is not None:
            progress.advance(task)
        is_enough = batch + 1 >= min(MIN_BUG_BATCHES, num_batches) and batch % 2 == 1
        if case.bug is not None and is_enough and p_value(halves.sum(0), probs, len(case.prompts)) < FOUND:
            break
    if progress is not None and task is not None:
        progress.remove_task(task)
    distance, error = cross_fitted_distance(halves, probs) if halves[1].any() else (float("nan"), float("nan"))
    return {
        "name": case.name,
        "bug": case.bug,
        "rule": case.rule_name,
        "trees": case.trees,
        "processors": case.processors + " ragged" * (len(case.prompts) > 1),
        "samples": int(halves.sum()),
        "p": p_value(halves.sum(0), probs, len(case.prompts)),
        "total_variation": distance,
        "standard_error": error,
        "block_efficiency": 1.0 if speculation is None else speculation.total_stats.block_efficiency,
        "seconds": time.perf_counter() - begin,
    }


def verdict(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The verdict on all cases together, as plain data."""
    right = [result for result in results if result["bug"] is None]
    bugs = [result for result in results if result["bug"] is not None]
    smallest = min(right, key=lambda result: result["p"], default={"p": 1.0, "name": "none"})
    missed = [result for result in bugs if result["p"] >= FOUND]
    return {
        "smallest_p": smallest["p"],
        "smallest_p_case": smallest["name"],
        "bonferroni_p": min(1.0, smallest["p"] * len(right)),
        "num_right": len(right),
        "num_bugs": len(bugs),
        "missed_bugs": [result["name"] for result in missed],
        "is_right": smallest["p"] * max(len(right), 1) > LEVEL and all(r["total_variation"] < SMALL for r in missed),
    }


def report(data: dict[str, Any]) -> str:
    """The result file for people."""
    right = [result for result in data["results"] if result["bug"] is None]
    bugs = [result for result in data["results"] if result["bug"] is not None]
    said = data["verdict"]
    smallest = (
        f"The smallest of {said['num_right']} p-values is {said['smallest_p']:.4f} ({said['smallest_p_case']}); times "
        f"their number (Bonferroni) that is {said['bonferroni_p']:.2f}, and the run counts as right above {LEVEL}."
    )
    return (
        f"# The joint distribution of {NUM_TOKENS} sampled tokens: {'right' if said['is_right'] else 'WRONG'}"
        "\n\n"
        f"Tiny llamas, vocabulary {VOCAB_SIZE}, prompt {PROMPT} (ragged: {RAGGED[1]} too, padded on the left), "
        f"{data['batches']} batches of {data['rows']} rows; warped: temperature {WARPED['temperature']}, top-p "
        f"{WARPED['top_p']}, repetition penalty {WARPED['repetition_penalty']}; min-p {MIN_P['min_p']}. Total "
        f"variation is cross-fitted: zero on average where the distributions agree.\n\n"
        + markdown_table(["rule", "trees", "processors", "samples", "p", "total variation", "tokens per tree"],
                         [_row(result) for result in right])
        + f"\n{smallest}\n"
        + _bugs_report(bugs)
        + f"\nSeeds {data['seed']} to {data['seed'] + data['batches'] - 1}, one per batch; load average "
        f"{data['load_average']} before, {data['load_average_after']} after.\n"
    )  # fmt: skip


def _bugs_report(bugs: list[dict[str, Any]]) -> str:
    if not bugs:
        return ""
    columns = ["bug", "rule", "trees", "processors", "samples", "p", "total variation", "found"]
    return f"\n## Planted bugs\n\nFound: p < {FOUND:g}; sampling ends there. {_missed_note(bugs)}\n\n" + markdown_table(
        columns, [[str(result["bug"]), *_row(result)[:-1], _found(result)] for result in bugs]
    )


def _row(result: dict[str, Any]) -> list[str]:
    distance = f"{result['total_variation']:.4f} ± {result['standard_error']:.4f}"
    p_value = f"{result['p']:.4f}" if result["p"] > 1e-4 else f"{result['p']:.1e}"
    efficiency = f"{result['block_efficiency']:.2f}"
    names = [result[key] for key in ("rule", "trees", "processors")]
    return [*names, f"{result['samples']:,}", p_value, distance, efficiency]


def _found(result: dict[str, Any]) -> str:
    if result["p"] < FOUND:
        return "yes"
    return f"no, below {SMALL}" if result["total_variation"] < SMALL else "NO"


def _missed_note(bugs: list[dict[str, Any]]) -> str:
    missed = [result for result in bugs if result["p"] >= FOUND]
    if not missed:
        return "All are found."
    return f"Not found: {len(missed)}, of which {sum(_found(r) == 'NO' for r in missed)} above {SMALL}."


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console, models = Console(), tiny_models()
    cases = head_cases() if args.heads else planted_bugs() + right_cases() + (more_cases() if args.more else [])
    output = args.output or RESULTS / "joint_distribution" / ("heads.json" if args.heads else "joint_distribution.json")
    options = {"batches": args.batches, "rows": args.rows, "seed": args.seed, "prompt": PROMPT}
    store, data = Store(args.cache / f"{digest(options)}.jsonl"), settings(**options)
    gc.freeze()  # The libraries' objects, or every collection would go through them all.
    with progress_bar(console) as progress:
        for case in progress.track(cases, description="all cases"):
            run = partial(run_case, case, models, args.batches, args.rows, args.seed, progress)
            result = store.get(case.name, run)
            console.print(" | ".join([result["name"], *_row(result)[3:], f"{result['seconds']:.0f} s"]))
    data["results"] = [store[case.name] for case in cases]
    data |= {"load_average_after": load_average(), "verdict": verdict(data["results"])}
    publish(output, data, report(data))
    sys.exit(0 if data["verdict"]["is_right"] else 1)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--batches", type=int, default=100)
    options.add_argument("--rows", type=int, default=2000)
    options.add_argument("--more", action="store_true", help="try the rules on more sampling schemes of trees")
    options.add_argument("--heads", action="store_true", help="only draft heads, with prompts of two lengths and min-p")
    options.add_argument("--output", type=Path)
    options.add_argument("--cache", type=Path, default=smollm2.converted_folder().parent / "joint_distribution")
    return options.parse_args()
