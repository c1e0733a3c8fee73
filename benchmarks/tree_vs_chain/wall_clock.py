"""Milliseconds per token of every drafter's best chain and best tree: a part of `benchmarks.tree_vs_chain`.

All contestants share the model, its packed linear layers, threads, `generate`, and a cache that holds the prompt
already: reading the prompt, the target's part and the draft model's, is not counted. Drafters are fresh for every
prompt. Runs are paired: every prompt is decoded by all contestants, one after the other, in rotating order. Chains and
trees are the fastest of a few in a pilot on other prompts, among them the policies that accepted most in the replay.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from rich.progress import Progress
from torch import Tensor
from transformers import DynamicCache

from benchmarks.common.drafters import DRAFTERS
from benchmarks.common.outputs import strip_padding
from benchmarks.common.prompts import Prompt, PromptSets, encode
from benchmarks.common.settings import load_average
from benchmarks.common.store import Store, digest
from benchmarks.tree_vs_chain.cells import Models
from benchmarks.tree_vs_chain.policies import CHAIN, POLICIES
from treespec import TreeSpeculation
from treespec.drafters.merge.opinion_pool import OpinionPool
from treespec.hf import TreeScorer, make_scorer
from treespec.hf.introspect import CACHE_NAME
from treespec.lab.selftest.agreement import Plain, compare, plain_greedy

BUDGETS, BATCH_SIZES = (8, 32), (1, 4)
CHAIN_LENGTHS, TREE_SIZES = (2, 4, 8, 16), (4, 8, 16, 32)
PLAIN, LOOKUP = "plain generate", "transformers' prompt lookup"


class Contestant(NamedTuple):
    """A drafter with a policy of `num_drafted` nodes below the root; without a drafter a way of transformers' own."""

    drafter: str | None
    policy: str
    num_drafted: int = 0

    @property
    def name(self) -> str:
        return self.policy if self.drafter is None else f"{self.drafter}: {self.policy} of {self.num_drafted}"


class Group(NamedTuple):
    """Prompts decoded together: their arguments, the filled cache and the time that filling it took, and plain
    greedy decoding of each."""

    prompts: list[Prompt]
    inputs: dict[str, Tensor]
    cache: DynamicCache
    prefill_seconds: float
    plains: list[Plain]


class TimedKit:
    """Scorers of the draft models, each with a cache of its own; merges learn as the calls go on."""

    pool: OpinionPool | None = None

    def __init__(self, models: Models) -> None:
        self._models = models

    def scorer(self, name: str) -> TreeScorer:
        return TreeScorer(self._models.drafts[name])


class Bench:
    """The models, and what every contestant gets alike."""

    def __init__(self, models: Models, acceptance: dict[str, Any], num_new: int) -> None:
        self.models, self.num_new, self._acceptance = models, num_new, acceptance
        self._plains: dict[str, Plain] = {}
        make_scorer(models.target)  # Runs the self-check of a model's first use, which is not timed.

    @torch.no_grad()
    def group(self, prompts: list[Prompt], num_new: int) -> Group:
        """Read the prompts; their plain continuations are decoded one by one, once."""
        inputs = encode(self.models.tokenizer, prompts)
        for prompt in prompts:
            if prompt.name not in self._plains:
                single = encode(self.models.tokenizer, [prompt])
                self._plains[prompt.name] = plain_greedy(self.models.target, single, num_new)
        cache, model = DynamicCache(), self.models.target
        called: Any = model
        mask = inputs["attention_mask"][:, :-1]
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        start = time.perf_counter()
        called(
            inputs["input_ids"][:, :-1],
            attention_mask=mask,
            position_ids=positions,
            **{CACHE_NAME: cache},
            use_cache=True,
            logits_to_keep=1,
        )
        seconds = time.perf_counter() - start
        return Group(prompts, inputs, cache, seconds, [self._plains[prompt.name] for prompt in prompts])

    def decode(self, contestant: Contestant, group: Group, num_new: int) -> dict[str, Any]:
        """One timed call, its outputs compared with plain greedy decoding of the single prompts."""
        options, speculation = self._options(contestant)
        is_lookup = contestant.policy == LOOKUP
        if not is_lookup:
            options[CACHE_NAME] = copy.deepcopy(group.cache)
        called: Any = self.models.target
        start = time.perf_counter()
        out = called.generate(**group.inputs, max_new_tokens=num_new, do_sample=False, **options)
        seconds = time.perf_counter() - start
        stats = speculation.stats if speculation else None
        # transformers' assisted generation goes wrong from a filled cache (5.23): it reads the prompt once more.
        reading = group.prefill_seconds if is_lookup else stats.seconds["prefill"] if stats else 0.0
        width, eos = group.inputs["input_ids"].shape[1], self.models.end
        rows = [strip_padding(row[width:].tolist(), eos) for row in out]
        agreements = [
            compare(called, ids[len(ids) - int(mask.sum()) :], shortened(plain, num_new), row)
            for ids, mask, plain, row in zip(
                group.inputs["input_ids"], group.inputs["attention_mask"], group.plains, rows, strict=True
            )
        ]
        return {
            "seconds": seconds - reading,
            "tokens": sum(map(len, rows)),
            "acceptance_length": stats.mean_acceptance_length if stats else None,
            "rows": len(rows),
            "identical": sum(found.is_identical for found in agreements),
            "right": sum(found.is_right for found in agreements),
        }

    def _options(self, contestant: Contestant) -> tuple[dict[str, Any], TreeSpeculation | None]:
        """The arguments of `generate` that set a contestant apart."""
        if contestant.drafter is None:
            return ({"prompt_lookup_num_tokens": 10} if contestant.policy == LOOKUP else {}), None
        entry = DRAFTERS[contestant.drafter]
        drafter = entry.make(TimedKit(self.models))
        table = self._acceptance["tables"]["T=0"].get(contestant.drafter, [])
        policy = POLICIES[contestant.policy].policy(contestant.num_drafted, table)
        speculation = TreeSpeculation(drafter, tree=policy, seed=0)
        return {"custom_generate": speculation}, speculation

    def best_policy(self, drafter: str, num_drafted: int) -> str:
        """The policy of proper trees that accepted most in the replay at temperature zero."""
        cells = self._acceptance["selected"]["T=0"].get(drafter)
        if not cells:
            return "best first"
        lengths = {
            name: fmean(prompt[name][str(num_drafted)][0] / prompt[name][str(num_drafted)][1] for prompt in cells)
            for name in POLICIES
            if name != CHAIN
        }
        return max(lengths, key=lambda name: lengths[name])

    def candidates(self, drafter: str) -> list[Contestant]:
        chains = [Contestant(drafter, CHAIN, n) for n in CHAIN_LENGTHS]
        return chains + [Contestant(drafter, self.best_policy(drafter, n), n) for n in TREE_SIZES]


def shortened(plain: Plain, num_new: int) -> Plain:
    return Plain(plain.tokens[:num_new], plain.gaps[:num_new])


def choose(bench: Bench, drafter: str, group: Group, num_new: int) -> dict[str, float]:
    """Seconds per token of a drafter's candidates on a group of the pilot's prompts, by name."""
    found = {}
    for candidate in bench.candidates(drafter):
        run = bench.decode(candidate, group, num_new)
        found[candidate.name] = run["seconds"] / run["tokens"]
    return found


def finalists(bench: Bench, drafter: str, pilots: Sequence[dict[str, float]]) -> dict[str, dict[str, Contestant]]:
    """By budget: the fastest chain and the fastest tree that draft no more nodes, over the pilot's groups."""
    cost = {c: fmean(pilot[c.name] for pilot in pilots) for c in bench.candidates(drafter)}
    found: dict[str, dict[str, Contestant]] = {}
    for budget in BUDGETS:
        fitting = [candidate for candidate in cost if candidate.num_drafted <= budget]
        found[str(budget)] = {
            "chain": min((c for c in fitting if c.policy == CHAIN), key=lambda c: cost[c]),
            "tree": min((c for c in fitting if c.policy != CHAIN), key=lambda c: cost[c]),
            "best": min(fitting, key=lambda c: cost[c]),
        }
    return found


def measure(
    args: argparse.Namespace,
    models: Models,
    sets: PromptSets,
    cache: Path,
    acceptance: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """The pilot, its choices and every run: by batch size and prompts, contestant, what `Bench.decode` returns."""
    deadline = time.perf_counter() + 60 * args.minutes
    acceptance = {"tables": {"T=0": {}}, "selected": {"T=0": {}}} | acceptance
    names = args.drafters or [name for name, entry in DRAFTERS.items() if entry.is_timed]
    bench = Bench(models, acceptance, args.new_tokens)
    replayed = acceptance["tables"]["T=0"], acceptance["selected"]["T=0"]
    store = Store(cache / f"{digest(args.new_tokens, args.seed, args.threads, names, replayed)}-time.jsonl")
    tried = pilot(args, bench, sets.pilot, names, store, progress)
    chosen = {
        size: {name: finalists(bench, name, runs) for name, runs in by_drafter.items()}
        for size, by_drafter in tried.items()
    }
    groups = [sets.timed[start : start + 4] for start in range(0, len(sets.timed), 4)]
    task = progress.add_task("timed prompts", total=len(sets.timed))
    runs: dict[str, dict[str, Any]] = {str(size): {} for size in BATCH_SIZES}
    loads = [load_average()]
    for number, prompts in enumerate(groups):
        if time.perf_counter() > deadline:
            break
        for size in BATCH_SIZES:
            for start in range(0, len(prompts), size):
                part = prompts[start : start + size]
                key = " | ".join(prompt.name for prompt in part)
                runs[str(size)][key] = store.get(
                    f"batch {size}: {key}",
                    lambda part=part, size=size, turn=number + start: measure_group(
                        bench, part, contestants(chosen[str(size)], size), turn
                    ),
                )
        loads.append(load_average())
        progress.advance(task, len(prompts))
    plain_choice = {
        size: {
            name: {budget: {k: c.name for k, c in found.items()} for budget, found in by_budget.items()}
            for name, by_budget in by_drafter.items()
        }
        for size, by_drafter in chosen.items()
    }
    return {"pilot": tried, "chosen": plain_choice, "runs": runs, "loads": loads}


def pilot(
    args: argparse.Namespace, bench: Bench, prompts: list[Prompt], names: list[str], store: Store, progress: Progress
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """By batch size, drafter and group of prompts: `choose`."""
    task = progress.add_task("pilot", total=len(names) * len(BATCH_SIZES))
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    num_new = min(args.new_tokens, 24)
    for size in BATCH_SIZES:
        parts = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        groups = [bench.group(part, args.new_tokens) for part in parts]
        found[str(size)] = {}
        for name in names:
            found[str(size)][name] = [
                store.get(
                    f"pilot {size}, {name}, {number}",
                    lambda name=name, group=group: choose(bench, name, group, num_new),
                )
                for number, group in enumerate(groups)
            ]
            progress.advance(task)
    return found


def contestants(chosen: dict[str, dict[str, dict[str, Contestant]]], batch_size: int) -> list[Contestant]:
    """Each once; prompt lookup runs single prompts only."""
    own = [Contestant(None, PLAIN)] + ([Contestant(None, LOOKUP)] if batch_size == 1 else [])
    found = [c for by_budget in chosen.values() for kinds in by_budget.values() for c in kinds.values()]
    return own + list(dict.fromkeys(found))


def measure_group(bench: Bench, prompts: list[Prompt], all_of: list[Contestant], turn: int) -> dict[str, Any]:
    """Every contestant once, in an order that rotates with `turn`."""
    group, first = bench.group(prompts, bench.num_new), turn * 5 % len(all_of)
    order = all_of[first:] + all_of[:first]
    runs = {contestant.name: bench.decode(contestant, group, bench.num_new) for contestant in order}
    return {contestant.name: runs[contestant.name] for contestant in all_of}
