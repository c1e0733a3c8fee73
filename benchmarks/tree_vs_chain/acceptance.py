"""Acceptance length of every drafter with every policy and budget, by replay: a part of `benchmarks.tree_vs_chain`.

Three measurements. `selected`: the engine's loop along texts of the target, greedy and sampled at temperature 1, for
policies with selected children; warm merges have learned what their parts are worth along the texts that Sequoia's
tables are measured on. `sampled`: sampled children at temperature 1, for the drafters that have a distribution, at
evenly spaced positions of the sampled texts, exactly in the rule's coins. `warm`: one tree of 24 nodes over many
more prompts.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from benchmarks.common.drafters import DRAFTERS
from benchmarks.common.prompts import Prompt, PromptSets
from benchmarks.common.recorded import Text
from benchmarks.common.settings import digest
from benchmarks.tree_vs_chain.cells import (
    Counts,
    Learned,
    Models,
    RecordedKit,
    measure_cells,
    measure_positions,
    measure_table,
)
from benchmarks.tree_vs_chain.replay import MARGIN
from treespec.lab.store import Store
from treespec.policies import BestFirst
from treespec.policies.sequoia import AcceptanceTable

KEYS = {0.0: "T=0", 1.0: "T=1"}
"""Temperatures and how results name them."""
MEASUREMENTS = ("selected", "sampled", "warm")
BY_KEY = ("selected", "tables")
WARM_NODES = 24
WARM_CLAIM = ("recycling + suffix, cold", "recycling + suffix, warm")


def measure(
    args: argparse.Namespace, models: Models, sets: PromptSets, cache: Path, progress: Progress
) -> dict[str, Any]:
    """Everything of the chosen drafters over the prompts that were begun in time.

    `selected` and `tables` by temperature and drafter, `sampled` and `warm` by drafter; one entry per prompt.
    """
    deadline = time.perf_counter() + 60 * args.minutes
    names = args.drafters or list(DRAFTERS)
    run = Run(args, names, models, sets, cache)
    found: dict[str, Any] = {
        "prompts": [prompt.name for prompt in sets.replayed],
        "selected": {key: {} for key in KEYS.values()},
        "tables": {key: {} for key in KEYS.values()},
        "sampled": {name: [] for name in names if DRAFTERS[name].scorer and "sampled" in args.measurements},
        "warm": {name: [] for name in names if name in WARM_CLAIM and "warm" in args.measurements},
    }
    if "selected" in args.measurements:
        found["tables"] = {key: run.tables(t) for t, key in KEYS.items()}
        found["selected"] = {key: {name: [] for name in names} for key in KEYS.values()}
    task = progress.add_task(f"trees of {WARM_NODES}", total=len(found["warm"]) * len(sets.timed))
    for name, lengths in found["warm"].items():
        for number in range(len(sets.timed)):
            lengths.append(run.warm(name, number))
            progress.advance(task)
    task = progress.add_task("prompts", total=len(sets.replayed) * len(KEYS) * len(names))
    for number, prompt in enumerate(sets.replayed):
        if time.perf_counter() > deadline or "selected" not in args.measurements:
            break
        for temperature, key in KEYS.items():
            kit = run.kit(number, temperature)
            for name in names:
                progress.update(task, description=f"{prompt.name}, {key}, {name}")
                table = found["tables"][key][name]
                found["selected"][key][name].append(run.cells(kit, name, number, temperature, table))
                progress.advance(task)
    task = progress.add_task("sampled children", total=len(sets.replayed) * len(found["sampled"]))
    for name, cells in found["sampled"].items():
        for number in range(len(sets.replayed)):
            if time.perf_counter() < deadline:
                cells.append(run.sampled(name, number))
                progress.advance(task)
    for part in ("sampled", "warm"):  # What the time did not suffice for.
        found[part] = {name: values for name, values in found[part].items() if values}
    return found


def merged(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What was known, its drafters replaced by those found: drafters may be measured one by one."""
    if not known or known["prompts"] != found["prompts"]:
        return found
    joined = {part: {key: known[part].get(key, {}) | new for key, new in found[part].items()} for part in BY_KEY}
    return found | joined | {part: known[part] | found[part] for part in ("sampled", "warm")}


class Run:
    """One call's settings, models and texts; every measurement is kept in the cache folder."""

    def __init__(
        self, args: argparse.Namespace, names: Sequence[str], models: Models, sets: PromptSets, cache: Path
    ) -> None:
        self._args, self._models, self._sets, self._cache = args, models, sets, cache
        self._stores = {name: Store(cache / f"{digest(name, args.new_tokens, args.seed)}.jsonl") for name in names}
        self._measuring_kits = {
            temperature: [RecordedKit(models, text) for text in self._texts(sets.measuring, temperature)]
            for temperature in KEYS
        }
        self._learned = {
            (name, temperature): Learned(kits, DRAFTERS[name], args.new_tokens, temperature > 0)
            for name in names
            for temperature, kits in self._measuring_kits.items()
        }

    def tables(self, temperature: float) -> dict[str, AcceptanceTable]:
        """What every drafter's Sequoia trees are made from."""
        found, kits = {}, self._measuring_kits[temperature]
        for name, store in self._stores.items():
            compute = partial(measure_table, kits, DRAFTERS[name], self._args.new_tokens, temperature > 0)
            found[name] = store.get(f"table, {KEYS[temperature]}", compute)["probs"]
        return found

    def kit(self, number: int, temperature: float) -> RecordedKit:
        return RecordedKit(self._models, self._texts(self._sets.replayed, temperature)[number])

    def cells(self, kit: RecordedKit, name: str, number: int, temperature: float, table: AcceptanceTable) -> Counts:
        """See `measure_cells`."""
        learned = self._learned[name, temperature]
        compute = partial(measure_cells, kit, DRAFTERS[name], table, self._args.new_tokens, temperature > 0, learned)
        return self._stores[name].get(f"{KEYS[temperature]}, {self._sets.replayed[number].name}", compute)

    def sampled(self, name: str, number: int) -> dict[str, Any]:
        """See `measure_positions`."""
        scorer, text = DRAFTERS[name].scorer, self._texts(self._sets.replayed, 1.0)[number]
        assert scorer is not None
        compute = partial(measure_positions, self._models, scorer, text, self._args.positions, self._args.seed + number)
        return self._stores[name].get(f"{self._args.positions} positions, {self._sets.replayed[number].name}", compute)

    def warm(self, name: str, number: int) -> float:
        """Acceptance length of best-first trees of 24 nodes at temperature zero along one of the timed prompts."""
        text = self._texts(self._sets.timed, 0.0)[number]

        def compute() -> dict[str, float]:
            kit = RecordedKit(self._models, text)
            stats = kit.run(DRAFTERS[name], BestFirst(WARM_NODES), False, self._args.new_tokens, False).stats
            return {"length": stats.mean_acceptance_length}

        return self._stores[name].get(f"{WARM_NODES} nodes, {self._sets.timed[number].name}", compute)["length"]

    def _texts(self, prompts: Sequence[Prompt], temperature: float) -> list[Text]:
        """`Models.texts`, kept in the cache folder once written."""
        args = self._args
        chosen = repr(([prompt.text for prompt in prompts], temperature, args.new_tokens, args.seed))
        file = self._cache / f"texts-{hashlib.sha256(chosen.encode()).hexdigest()[:16]}.pt"
        if not file.is_file():
            texts = self._models.texts(prompts, temperature, args.new_tokens + MARGIN, args.seed)
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save([(text.ids, text.start) for text in texts], file)
        return [Text(ids, start) for ids, start in torch.load(file)]
