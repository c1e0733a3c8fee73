"""Acceptance length of every drafter with every policy and budget, by replay: a part of `tree_vs_chain.py`.

Three measurements. `selected`: the engine's loop along texts of the target, greedy and sampled at temperature 1, for
policies with selected children. `sampled`: sampled children at temperature 1, for the drafters that have a law, at
evenly spaced places of the sampled texts, exactly in the rule's coins. `warm`: one tree of 24 nodes over all the
prompts of the wall-clock benchmark.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.progress import Progress
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import treespec.policies
from benchmarks.acceptance import CachedTree, Kind, grow, inner_contexts, mean_accepted
from benchmarks.drafters import DRAFT, DRAFTERS, EXIT, EXIT_LAYERS, Entry
from benchmarks.prompts import Prompt, PromptSets, encode
from benchmarks.recorded import RecordedLaws, Text, without_layers
from benchmarks.replay import MARGIN, RecordedScorer, replay
from benchmarks.store import Store
from benchmarks.tree_policies import BUDGETS, CHAIN, FAMILIES, SAMPLED, measuring_policy
from treespec.hf import CausalLM
from treespec.hf.cpu import prepack_linears
from treespec.policies import BestFirst
from treespec.policies.sequoia import AcceptanceTable, non_increasing
from treespec.stats import SpeculationStats
from treespec.tree import TokenTree, TreeBatch
from treespec.verification import resolve

KEYS = {0.0: "T=0", 1.0: "T=1"}
"""Temperatures and how results name them."""
MEASUREMENTS = ("selected", "sampled", "warm")
BY_KEY = ("selected", "tables")
NUM_KEPT = 16
RARELY = 1e-3
"""The least acceptance in a table: what was never accepted in the measuring texts still fills a large tree."""
WARM_NODES = 24
WARM_CLAIM = ("recycling + suffix, cold", "recycling + suffix, warm")

Counts = dict[str, dict[str, list[int]]]
"""By policy and number of drafted tokens: accepted tokens plus one per step, summed over the steps, and the steps."""


class Models:
    """The target and its drafts, all with packed linear layers."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.target, self.tokenizer, self.end = model, tokenizer, int(str(tokenizer.eos_token_id))
        num_layers = model.config.num_hidden_layers
        self.drafts = {DRAFT: without_layers(model), EXIT: without_layers(model, range(EXIT_LAYERS, num_layers))}
        for part in (model, *self.drafts.values()):
            prepack_linears(part)

    def texts(self, prompts: Sequence[Prompt], temperature: float, num_new: int, seed: int) -> list[Text]:
        """The prompts continued by the target, greedily at temperature zero, up to the end of text."""
        torch.manual_seed(seed)
        called: Any = self.target
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        texts = []
        for start in range(0, len(prompts), 4):
            inputs = encode(self.tokenizer, prompts[start : start + 4])
            options: dict[str, Any] = sampling if temperature else {"do_sample": False}
            out = called.generate(**inputs, max_new_tokens=num_new, **options)
            texts += [self._text(*row) for row in zip(out, inputs["attention_mask"], strict=True)]
        return texts

    def _text(self, ids: torch.Tensor, mask: torch.Tensor) -> Text:
        """One row int64 [L] without its padding; mask int64 [P] is the prompt's."""
        start = int(mask.sum())
        ids = ids[len(mask) - start :]
        ends = torch.eq(ids[start:], self.end).nonzero()
        return Text(ids[: start + int(ends[0]) + 1] if len(ends) else ids, start)


class RecordedKit:
    """The draft models' scorers along one text, shared by all cells that are replayed there."""

    def __init__(self, models: Models, text: Text) -> None:
        self._models, self._text = models, text
        self.target = RecordedScorer(models.target, text, NUM_KEPT)
        self._scorers: dict[str, RecordedScorer] = {}
        self._is_text_enough = False

    def scorer(self, name: str) -> RecordedScorer:
        if name not in self._scorers:
            self._scorers[name] = RecordedScorer(self._models.drafts[name], self._text)
        self._scorers[name].is_text_enough = self._is_text_enough
        return self._scorers[name]

    def run(self, entry: Entry, policy: Any, is_fixed: bool, num_new: int, is_sampling: bool) -> SpeculationStats:
        """One fresh drafter along the text."""
        # A merged tree is shaped by what the draft model promised beside the text, whatever the policy.
        self._is_text_enough = is_fixed and entry.scorer is not None
        self.target.is_text_enough = not entry.reads_logits
        return replay(self.target, entry.make(self), policy, self._text, num_new, is_sampling)


def measure_cells(kit: RecordedKit, entry: Entry, table: AcceptanceTable, num_new: int, is_sampling: bool) -> Counts:
    """Every policy at every budget along one text. The largest trees come first: the others find their nodes scored."""
    found: Counts = {}
    for name, family in FAMILIES.items():
        found[name] = {}
        for n in sorted(BUDGETS[1:] if name != CHAIN else BUDGETS, reverse=True):
            stats = kit.run(entry, family.policy(n, table), family.is_fixed, num_new, is_sampling)
            found[name][str(n)] = [stats.num_accepted_tokens + stats.num_drafts, stats.num_drafts]
    for cells in found.values():  # A tree of one drafted token is a chain.
        cells["1"] = found[CHAIN]["1"]
    return found


def measure_table(
    kits: Sequence[RecordedKit], entry: Entry, num_new: int, is_sampling: bool
) -> dict[str, AcceptanceTable]:
    """How often the child of each depth and rank is accepted in a wide tree, for `Sequoia`."""
    total = SpeculationStats()
    for kit in kits:
        total.add(kit.run(entry, measuring_policy(), True, num_new, is_sampling))
    rows = [non_increasing(row) for row in total.acceptance_per_place] or [[0.0]]
    return {"probs": [[max(prob, RARELY * 0.5**rank) for rank, prob in enumerate(row)] for row in rows]}


def measure_places(models: Models, name: str, text: Text, num_places: int, seed: int) -> dict[str, dict[str, float]]:
    """By policy and drafted tokens: the mean number of accepted tokens plus one, at places of a text, temperature 1."""
    families = SAMPLED | {key: FAMILIES[key] for key in (CHAIN, "best first")}
    scorers = CausalLM(models.target), CausalLM(models.drafts[name])
    laws = RecordedLaws(*scorers, text.contexts(num_places), 1.0)
    found: dict[str, dict[str, float]] = {}
    for key, family in families.items():
        kind = Kind(lambda n, family=family: family.policy(n, []))
        found[key] = {
            str(n): 1 + fmean(expected_accepted(tree, laws) for tree in grow(kind, n, laws, range(num_places), seed))
            for n in BUDGETS
        }
    return found


def expected_accepted(tree: TokenTree, laws: RecordedLaws) -> float:
    """Accepted draft tokens of a drafted tree under the default rule, exactly in its coins."""
    contexts = inner_contexts(tree)
    known = dict(zip(contexts, laws.target(list(contexts.values())), strict=True))
    after_leaf = torch.ones(1)
    rule = resolve("auto", True, TreeBatch.from_trees([tree]))
    return mean_accepted(rule, CachedTree(tree), lambda node: known.get(node, after_leaf))


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
        self._stores = {name: Store(cache / f"{digest(name, args)}.jsonl") for name in names}

    def tables(self, temperature: float) -> dict[str, AcceptanceTable]:
        """What every drafter's Sequoia trees are made from."""
        kits = [RecordedKit(self._models, text) for text in self._texts(self._sets.measuring, temperature)]
        found = {}
        for name, store in self._stores.items():
            compute = partial(measure_table, kits, DRAFTERS[name], self._args.new_tokens, temperature > 0)
            found[name] = store.get(f"table, {KEYS[temperature]}", compute)["probs"]
        return found

    def kit(self, number: int, temperature: float) -> RecordedKit:
        return RecordedKit(self._models, self._texts(self._sets.replayed, temperature)[number])

    def cells(self, kit: RecordedKit, name: str, number: int, temperature: float, table: AcceptanceTable) -> Counts:
        """See `measure_cells`."""
        compute = partial(measure_cells, kit, DRAFTERS[name], table, self._args.new_tokens, temperature > 0)
        return self._stores[name].get(f"{KEYS[temperature]}, {self._sets.replayed[number].name}", compute)

    def sampled(self, name: str, number: int) -> dict[str, Any]:
        """See `measure_places`."""
        scorer, text = DRAFTERS[name].scorer, self._texts(self._sets.replayed, 1.0)[number]
        assert scorer is not None
        compute = partial(measure_places, self._models, scorer, text, self._args.places, self._args.seed + number)
        return self._stores[name].get(f"{self._args.places} places, {self._sets.replayed[number].name}", compute)

    def warm(self, name: str, number: int) -> float:
        """Acceptance length of best-first trees of 24 nodes at temperature zero along one of the timed prompts."""
        text = self._texts(self._sets.timed, 0.0)[number]

        def compute() -> dict[str, float]:
            kit = RecordedKit(self._models, text)
            stats = kit.run(DRAFTERS[name], BestFirst(WARM_NODES), False, self._args.new_tokens, False)
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


def digest(name: str, args: argparse.Namespace) -> str:
    """Of what decides a drafter's numbers: what was measured with other code or settings is not reused."""
    package = Path(treespec.policies.__file__ or "").parent.parent
    files = [*sorted((package / "policies").glob("*.py")), package / "engine.py", package / "stats.py"]
    for prefix in ("shared", *DRAFTERS[name].sources):
        files += sorted((package / "drafters").glob(f"{prefix}*.py"))
    files += [
        Path(__file__).with_name(own) for own in ("replay.py", "tree_policies.py", "recorded.py", "acceptance.py")
    ]
    hasher = hashlib.sha256(repr((name, args.new_tokens, args.seed)).encode())
    for file in files:
        hasher.update(file.read_bytes())
    return hasher.hexdigest()[:16]
