"""Trees against chains: acceptance of every drafter with every policy.

The engine's loop is replayed along recorded texts of SmolLM2-135M, greedy and sampled at temperature 1, with selected
children: a measurement of what is accepted, on any machine, whatever else runs there. `benchmarks.peers` measures
times, `benchmarks.verification` what sampled children bring. Finished prompts are kept in the user's cache folder:
started again, a run goes on where it stopped. Results: benchmarks/results/tree_vs_chain/tree_vs_chain.{json,md}.

    python -m benchmarks.tree_vs_chain acceptance --spec-bench question.jsonl
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.common.drafters import DRAFTERS
from benchmarks.common.prompts import QUESTIONS, Prompt, held_out
from benchmarks.common.recorded import Text, write_texts
from benchmarks.common.settings import RESULTS, digest, load_average, parser, settings, write_json
from benchmarks.tree_vs_chain import report
from benchmarks.tree_vs_chain.cells import Counts, Learned, Models, RecordedKit, measure_cells, measure_table
from benchmarks.tree_vs_chain.replay import MARGIN
from treespec.commands.console import progress_bar
from treespec.lab import smollm2
from treespec.lab.store import Store
from treespec.policies.sequoia import AcceptanceTable

KEYS = {0.0: "T=0", 1.0: "T=1"}
"""Temperatures and how results name them."""
NUM_MEASURING = 4


class Benchmark:
    """One call's settings, models and texts; every measurement is kept in the cache folder.

    `prompts` are replayed; Sequoia's tables and warm merges learn from the texts of the others, `measuring`.
    """

    def __init__(
        self, args: argparse.Namespace, models: Models, prompts: list[Prompt], measuring: list[Prompt], cache: Path
    ) -> None:
        self._args, self._models, self._prompts, self._cache = args, models, prompts, cache
        self.names, num_new = args.drafters or list(DRAFTERS), args.new_tokens
        self._stores = {name: Store(cache / f"{digest(name, num_new, args.seed)}.jsonl") for name in self.names}
        self._measuring_kits = {t: [RecordedKit(models, text) for text in self._texts(measuring, t)] for t in KEYS}
        self._learned = {
            (name, t): Learned(kits, DRAFTERS[name], num_new, t > 0)
            for name in self.names
            for t, kits in self._measuring_kits.items()
        }

    def run(self, progress: Progress) -> dict[str, Any]:
        """The prompts that were begun in time; `selected` and `tables` by temperature and drafter, prompt by prompt."""
        deadline = time.perf_counter() + 60 * self._args.minutes
        selected: dict[str, Any] = {key: {name: [] for name in self.names} for key in KEYS.values()}
        tables = {key: self.tables(temperature) for temperature, key in KEYS.items()}
        task = progress.add_task("prompts", total=len(self._prompts) * len(KEYS) * len(self.names))
        for number, prompt in enumerate(self._prompts):
            if time.perf_counter() > deadline:
                break
            for temperature, key in KEYS.items():
                kit = RecordedKit(self._models, self._texts(self._prompts, temperature)[number])
                for name in self.names:
                    progress.update(task, description=f"{prompt.name}, {key}, {name}")
                    selected[key][name].append(self.cells(kit, name, prompt, temperature, tables[key][name]))
                    progress.advance(task)
        return {"prompts": [prompt.name for prompt in self._prompts], "selected": selected, "tables": tables}

    def tables(self, temperature: float) -> dict[str, AcceptanceTable]:
        """Acceptance by drafter, from which its Sequoia trees are made."""
        found, kits = {}, self._measuring_kits[temperature]
        for name, store in self._stores.items():
            compute = partial(measure_table, kits, DRAFTERS[name], self._args.new_tokens, temperature > 0)
            found[name] = store.get(f"table, {KEYS[temperature]}", compute)["probs"]
        return found

    def cells(self, kit: RecordedKit, name: str, prompt: Prompt, temperature: float, table: AcceptanceTable) -> Counts:
        """See `measure_cells`."""
        learned = self._learned[name, temperature]
        compute = partial(measure_cells, kit, DRAFTERS[name], table, self._args.new_tokens, temperature > 0, learned)
        return self._stores[name].get(f"{KEYS[temperature]}, {prompt.name}", compute)

    def _texts(self, prompts: list[Prompt], temperature: float) -> list[Text]:
        models, args = self._models, self._args
        num_new = args.new_tokens + MARGIN
        return write_texts(models.target, models.tokenizer, prompts, temperature, num_new, args.seed, self._cache)


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    models = Models(*smollm2.load(say=console.print))
    chosen = held_out(args.spec_bench, args.replayed + NUM_MEASURING)
    names = ("seed", "new_tokens", "replayed")
    run, start = settings(**{name: getattr(args, name) for name in names}), time.perf_counter()
    cache = smollm2.converted_folder().parent / "tree_vs_chain"
    with progress_bar(console) as progress:
        found = Benchmark(args, models, chosen[: args.replayed], chosen[args.replayed :], cache).run(progress)
    run |= {"load_average_after": load_average(), "seconds": round(time.perf_counter() - start)}
    write_json(args.folder / "tree_vs_chain.json", found := found | {"run": run})
    console.print(report.write(found, args.folder), markup=False)


def _arguments() -> argparse.Namespace:
    options = parser("Trees against chains: acceptance.", threads=2)
    options.add_argument("part", choices=["acceptance"])
    options.add_argument("--spec-bench", **QUESTIONS)
    options.add_argument("--replayed", type=int, default=8, help="replayed prompts (default: %(default)s)")
    options.add_argument("--new-tokens", type=int, default=24)
    options.add_argument("--drafters", nargs="+", default=None, choices=list(DRAFTERS), metavar="NAME")
    options.add_argument("--minutes", type=float, default=36.0, help="no prompt is begun later (default: 36)")
    options.add_argument("--folder", type=Path, default=RESULTS / "tree_vs_chain", help="for the results")
    return options.parse_args()


if __name__ == "__main__":
    main()
