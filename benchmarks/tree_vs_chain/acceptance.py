"""Acceptance length of every drafter with every policy and budget, by replay: a part of `benchmarks.tree_vs_chain`.

The engine's loop along texts of the target, greedy and sampled at temperature 1, with selected children; warm merges
have learned what their parts are worth along the texts that Sequoia's tables are measured on. What sampled children
bring is measured by `benchmarks.verification`.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from benchmarks.common.drafters import DRAFTERS
from benchmarks.common.prompts import Prompt
from benchmarks.common.recorded import Text, write_texts
from benchmarks.common.settings import digest
from benchmarks.tree_vs_chain.cells import Counts, Learned, Models, RecordedKit, measure_cells, measure_table
from benchmarks.tree_vs_chain.replay import MARGIN
from treespec.lab.store import Store
from treespec.policies.sequoia import AcceptanceTable

KEYS = {0.0: "T=0", 1.0: "T=1"}
"""Temperatures and how results name them."""


class PromptSets(NamedTuple):
    """Prompts to replay, and others whose texts Sequoia's tables and warm merges learn from."""

    replayed: list[Prompt]
    measuring: list[Prompt]


def measure(
    args: argparse.Namespace, models: Models, sets: PromptSets, cache: Path, progress: Progress
) -> dict[str, Any]:
    """The prompts that were begun in time; `selected` and `tables` by temperature and drafter, one entry per prompt."""
    deadline = time.perf_counter() + 60 * args.minutes
    names = args.drafters or list(DRAFTERS)
    run = Run(args, names, models, sets, cache)
    selected: dict[str, Any] = {key: {name: [] for name in names} for key in KEYS.values()}
    tables = {key: run.tables(temperature) for temperature, key in KEYS.items()}
    task = progress.add_task("prompts", total=len(sets.replayed) * len(KEYS) * len(names))
    for number, prompt in enumerate(sets.replayed):
        if time.perf_counter() > deadline:
            break
        for temperature, key in KEYS.items():
            kit = run.kit(number, temperature)
            for name in names:
                progress.update(task, description=f"{prompt.name}, {key}, {name}")
                selected[key][name].append(run.cells(kit, name, number, temperature, tables[key][name]))
                progress.advance(task)
    return {"prompts": [prompt.name for prompt in sets.replayed], "selected": selected, "tables": tables}


def merged(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Earlier results with those of the drafters in `found` replaced: drafters may be measured one by one."""
    if not known or known["prompts"] != found["prompts"]:
        return found
    by_key = {part: found[part] for part in ("selected", "tables")}
    return found | {part: {key: known[part][key] | new for key, new in mine.items()} for part, mine in by_key.items()}


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
        """Acceptance by drafter, from which its Sequoia trees are made."""
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

    def _texts(self, prompts: Sequence[Prompt], temperature: float) -> list[Text]:
        models, args = self._models, self._args
        num_new = args.new_tokens + MARGIN
        return write_texts(models.target, models.tokenizer, prompts, temperature, num_new, args.seed, self._cache)
