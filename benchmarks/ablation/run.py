"""Ablations: rule x policy x temperature, and any of draft strength, nucleus and size, replayed on recorded
distributions.

Every combination of the factors given on the command line is a cell. All cells of a temperature are measured in the
same contexts, prefixes of texts that SmolLM2-135M sampled, on trees that the draft grew there; acceptance is exact in a
rule's coins. What a cell does is compared with the baseline cell of the same remaining factors, context by context.

    python -m benchmarks.ablation --rules target_walk recursive traversal --policies chain "best first, selected" \
        --temperatures 0.6 1 --nodes 16 --baseline rule=target_walk policy=chain

Results: benchmarks/results/ablation/ablation.parquet (one row per cell and context), .md and .png, by the statistics of
`treespec ablate`, which runs such grids through the engine on any model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from transformers import PreTrainedModel
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from benchmarks.common.acceptance import TREES, CachedTree, Context, grow, inner_contexts, mean_accepted
from benchmarks.common.progress import progress_bar
from benchmarks.common.recorded import ModelDistributions, Text, sample_texts, without_layers
from benchmarks.common.settings import RESULTS, load_average, parser, settings, settings_lines, write_json
from treespec.hf import TreeScorer
from treespec.hf.cpu import prepack_linears
from treespec.hf.generation.processors import TreeProcessors
from treespec.hf.loading import smollm2
from treespec.lab.measure.study.summary import Compared, compare, panels_of, report
from treespec.lab.measure.study.table import write_table
from treespec.protocols import CausalScorer
from treespec.tree import TokenTree, TreeBatch
from treespec.verification import RULES
from treespec.viz import Gain, plot_gains

DRAFTS = {"strong": (15,), "medium": (14, 15, 16), "weak": (12, 13, 14, 15, 16)}
"""Drafts by the layers of the target that they leave out."""

FACTORS = ("draft", "temperature", "top_p", "nodes", "policy", "rule")
PANELS = ("draft", "temperature", "top_p", "nodes")


class Row(NamedTuple):
    """One cell in one context: `length` is the mean number of accepted draft tokens, plus one."""

    context: str
    draft: str
    temperature: float
    top_p: float
    nodes: int
    policy: str
    rule: str
    length: float


class WarpedDistributions:
    """Target and draft below some texts, under a temperature and a nucleus; see
    `benchmarks.common.acceptance.Distributions`."""

    def __init__(
        self, target: CausalScorer, draft: CausalScorer, texts: Sequence[torch.Tensor], temperature: float, top_p: float
    ) -> None:
        self._target, self._draft = (_WarpedModel(scorer, texts, temperature, top_p) for scorer in (target, draft))

    def target(self, contexts: Sequence[Context]) -> list[torch.Tensor]:
        return self._target.of(contexts)

    def draft(self, contexts: Sequence[Context]) -> list[torch.Tensor]:
        return self._draft.of(contexts)


class _WarpedModel(ModelDistributions):
    def __init__(self, scorer: CausalScorer, texts: Sequence[torch.Tensor], temperature: float, top_p: float) -> None:
        super().__init__(scorer, texts, temperature)
        warpers: list[Any] = [TemperatureLogitsWarper(temperature)] if temperature != 1 else []
        warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        self._processors = TreeProcessors(warpers, num_rows=len(texts))


def accepted_lengths(trees: Sequence[TokenTree], probs: WarpedDistributions, rules: Sequence[str]) -> dict[str, float]:
    """Mean acceptance length over some trees of one context, for the rules that support all of them."""
    found: dict[str, list[float]] = {name: [] for name in rules}
    after_leaf = torch.ones(1)  # What follows a leaf does not change what is counted.
    for tree in trees:
        contexts = inner_contexts(tree)
        known = dict(zip(contexts, probs.target(list(contexts.values())), strict=True))
        cached, batch = CachedTree(tree), TreeBatch.from_trees([tree])
        for name in rules:
            if RULES[name].reason_against(batch) is None:
                accepted = mean_accepted(RULES[name], cached, lambda node, known=known: known.get(node, after_leaf))
                found[name].append(1 + accepted)
    return {name: fmean(lengths) for name, lengths in found.items() if len(lengths) == len(trees)}


def measure_text(
    scorers: tuple[CausalScorer, CausalScorer],
    text: Text,
    names: Sequence[str],
    levels: Mapping[str, Any],
    args: argparse.Namespace,
) -> Iterator[Row]:
    """All cells of one draft, temperature and nucleus, in the contexts of one text.

    Args:
        scorers: the target's and the draft's.
        names: of the contexts.
        levels: draft, temperature and top_p, as the rows show them.
    """
    contexts = text.contexts(len(names))
    probs = WarpedDistributions(*scorers, contexts, levels["temperature"], levels["top_p"])
    for nodes, policy in product(args.nodes, args.policies):
        kind = TREES[policy]
        seeds = range(args.seed, args.seed + (1 if kind.is_deterministic else args.draws))
        grown = [grow(kind, nodes, probs, range(len(contexts)), seed) for seed in seeds]
        for number, name in enumerate(names):
            trees = [of_seed[number] for of_seed in grown]
            for rule, length in accepted_lengths(trees, probs, args.rules).items():
                yield Row(context=name, nodes=nodes, policy=policy, rule=rule, length=length, **levels)


def measure(args: argparse.Namespace, model: PreTrainedModel, tokenizer: Any, progress: Progress) -> list[Row]:
    """One row per cell and context. Contexts are the same for all cells of a temperature."""
    cells = list(product(args.drafts, args.temperatures, args.top_p))
    task = progress.add_task("contexts", total=len(cells) * args.contexts)
    cache, rows = smollm2.converted_folder().parent / "ablation", list[Row]()
    with prepack_linears(model):
        drafts = {name: without_layers(model, DRAFTS[name]) for name in args.drafts}
        for draft, temperature, top_p in cells:
            file = cache / f"texts-{temperature}-{args.new_tokens}-{args.seed}.pt"
            texts = sample_texts(model, tokenizer, temperature, args.new_tokens, args.seed, file)
            levels = {"draft": draft, "temperature": temperature, "top_p": top_p}
            with prepack_linears(drafts[draft]):
                scorers = TreeScorer(model), TreeScorer(drafts[draft])
                for number, text in enumerate(texts):
                    count = (number + 1) * args.contexts // len(texts) - number * args.contexts // len(texts)
                    names = [f"T={temperature:g}, text {number}, position {i}" for i in range(count)]
                    if names:
                        rows += measure_text(scorers, text, names, levels, args)
                        progress.advance(task, count)
    return rows


def whole_cells(rows: Sequence[Row]) -> list[Row]:
    """Without the cells of rules that support only some of a policy's trees, such as the few that are chains by chance.

    Those would be measured in contexts that were chosen by what was drafted there.
    """
    counts = Counter(row[1:-1] for row in rows)
    fullest: dict[tuple[Any, ...], int] = {}
    for (*levels, _), count in counts.items():
        fullest[tuple(levels)] = max(fullest.get(tuple(levels), 0), count)
    return [row for row in rows if counts[row[1:-1]] == fullest[row[1:-2]]]


def compared(rows: Sequence[Row], baseline: Mapping[str, str]) -> list[Compared]:
    """Statistics of every cell, paired by context. Raises `ConfigError`: there is no such baseline."""
    texts = {name: {str(getattr(row, name)): getattr(row, name) for row in rows} for name in FACTORS}
    levels = {name: texts[name].get(level, level) for name, level in baseline.items()}
    table = [row._asdict() | {"tokens_per_pass": row.length} for row in rows]
    return compare(table, FACTORS, ("context",), lambda cell: cell | levels)


def write_results(rows: Sequence[Row], baseline: Mapping[str, str], run: Mapping[str, Any], output: Path) -> str:
    """The table, the report and the picture; returns the report."""
    cells = compared(rows, baseline)
    write_table([row._asdict() for row in rows], output.with_suffix(".parquet"))
    reference = ", ".join(f"{factor} {level}" for factor, level in baseline.items())
    load = f"load {run['load_average']} before, {run['load_average_after']} after"
    about = (
        f"Tokens per pass (accepted draft tokens + 1) in {run['contexts']} contexts per temperature: prefixes of texts "
        "that SmolLM2-135M sampled at that temperature. Exact in the rules' coins; the number of drafted trees per "
        f"context is {run['draws']} where children are sampled. Drafts are the target without some of its layers. The "
        f"gain is the mean paired difference to the baseline ({reference}, other factors alike), with a 95 % bootstrap "
        "interval over contexts. Rules that do not support a tree are left out.\n\n"
        f"One row per cell and context: `{output.name}.parquet`. {run['seconds']} s, {load}. "
        f"{settings_lines(dict(run))}"
    )
    text = report(cells, "Ablation", about, f"{output.name}.png", PANELS)
    output.with_suffix(".md").write_text(text)
    panels = {
        panel: [Gain(c.levels["policy"], c.levels["rule"], *((0.0,) if c.gain is None else c.gain)) for c in mine]
        for panel, mine in panels_of(cells, PANELS).items()
    }
    plot_gains(panels, output.with_suffix(".png"), f"Gain over {', '.join(baseline.values())}")
    return text


def read_baseline(pairs: Sequence[str]) -> dict[str, str]:
    """`["rule=traversal", ...]` as a dictionary.

    Raises:
        ValueError: no pair of a factor and a level.
    """
    found = {factor: level for factor, _, level in (pair.partition("=") for pair in pairs)}
    if unknown := set(found) - set(FACTORS):
        raise ValueError(f"unknown factors {sorted(unknown)} in the baseline; there are {', '.join(FACTORS)}")
    return found


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console, start = Console(), time.perf_counter()
    run = settings(seed=args.seed, contexts=args.contexts, draws=args.draws, new_tokens=args.new_tokens)
    model, tokenizer = smollm2.load(say=console.print)
    with progress_bar(console) as progress:
        rows = whole_cells(measure(args, model, tokenizer, progress))
    run |= {"load_average_after": load_average(), "seconds": round(time.perf_counter() - start)}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.output.with_suffix(".json"), {"run": run, "baseline": args.baseline})
    console.print(write_results(rows, args.baseline, run, args.output), markup=False)


def _arguments() -> argparse.Namespace:
    options = parser("Ablations of rules and policies on recorded distributions.", threads=1)
    options.add_argument("--rules", nargs="+", choices=list(RULES), metavar="RULE", default=list(RULES)[:5])
    options.add_argument("--policies", nargs="+", choices=list(TREES), metavar="POLICY", default=list(TREES))
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.6, 1.0])
    options.add_argument("--top-p", nargs="+", type=float, default=[1.0])
    options.add_argument("--nodes", nargs="+", type=int, default=[16], help="of a tree, root included")
    options.add_argument("--drafts", nargs="+", choices=list(DRAFTS), default=["medium"])
    options.add_argument("--baseline", nargs="+", default=["rule=target_walk", "policy=best first, selected"])
    options.add_argument("--contexts", type=int, default=54, help="per temperature (default: %(default)s)")
    options.add_argument("--draws", type=int, default=2, help="sampled trees per context and policy")
    options.add_argument("--new-tokens", type=int, default=96, help="tokens sampled after each prompt")
    options.add_argument("--output", type=Path, default=RESULTS / "ablation" / "ablation", help="path without a suffix")
    args = options.parse_args()
    try:
        args.baseline = read_baseline(args.baseline)
    except ValueError as error:
        sys.exit(str(error))
    return args
