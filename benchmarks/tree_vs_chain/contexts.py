"""Speed by context, batch and temperature: a part of `benchmarks.tree_vs_chain`.

All contestants share the model with optimized linear layers. A row is a prompt behind the texts of others, first of its
own category, together exactly as long as the context. It is read once, by the target and by the head, and every
contestant gets a copy of these caches, so reading is not counted. A group is the rows of a batch; all contestants
decode every group, in rotating order. Each contestant is one object per cell (context, batch, temperature), as in use;
`tree="auto"` first decodes a row that is not counted.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import torch
from rich.progress import Progress
from torch import Tensor
from transformers import DynamicCache

from benchmarks.common.drafters import warm_start
from benchmarks.common.outputs import strip_padding
from benchmarks.common.prompts import Prompt, by_turns, encode, spread
from benchmarks.common.settings import load_average
from benchmarks.common.store import Store
from benchmarks.peers.report import category
from treespec import Chain, Eagle3, TreeSpeculation
from treespec.drafters.heads.unread_features import MAX_COLUMNS, Pairs
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.hf import make_scorer
from treespec.hf.cache.caches import filled_layers, twin_cache
from treespec.hf.cache.growing import use_growing_layers
from treespec.hf.introspect import CACHE_NAME
from treespec.lab.selftest.agreement import TIE
from treespec.protocols import Session

PLAIN, GROWING, AUTO = "plain", "plain, growing cache", "auto"
SHAPES: dict[str, Any] = {"chain of 2": Chain(2), "chain of 4": Chain(4), "tree of 8": 8, "tree of 16": 16, AUTO: AUTO}
LOOKUPS, HEAD, MERGED = "lookups", "head", "merged"
DRAFTERS = (MERGED, HEAD, LOOKUPS)
NUM_ROWS, NUM_TOKENS = 8, 8192
"""Rows per context, and the most tokens of all groups of a cell together; the first group always comes."""
SHORTEST = 256
"""Longer prompts are chosen where all contexts have room for them; in shorter contexts the beginning is cut off."""


class Cell(NamedTuple):
    context: int
    batch: int
    temperature: float

    @property
    def name(self) -> str:
        return f"context {self.context}, batch {self.batch}, T={self.temperature:g}"

    def num_groups(self, most: int) -> int:
        return max(1, min(most, NUM_ROWS // self.batch, NUM_TOKENS // (self.context * self.batch)))

    def drafters(self, asked: Sequence[str] | None) -> list[str]:
        """Those asked for; else the merge, and the others where they are cheap."""
        is_cheap = self.batch in (1, 4) and self.context <= 1024
        return list(asked or (DRAFTERS if is_cheap else (MERGED,)))


def cells(contexts: Sequence[int], batches: Sequence[int], temperatures: Sequence[float]) -> list[Cell]:
    """The cheapest first."""
    return sorted(map(Cell._make, product(contexts, batches, temperatures)), key=lambda c: (c.context * c.batch, c))


class Rows(NamedTuple):
    """Token ids int64 [B, C], and the caches of all but the last two: the target's and the head's."""

    ids: Tensor
    cache: DynamicCache
    keys: DraftingCache


class FilledHead(Eagle3):
    """A head whose keys of the prompt are there when a call starts, as the target's are."""

    prompt_keys: DraftingCache

    def start(self, session: Session) -> None:
        super().start(session)
        self._keys = copy.deepcopy(self.prompt_keys)
        self._unread.offsets = [0] * session.history.num_rows  # The keys begin with the prompt.

    def read(self, states: Tensor, tokens: Tensor) -> DraftingCache:
        """The keys of one row: states [1, P, Y] and the tokens after them, int64 [1, P]."""
        keys = DraftingCache(self.head.config.layer, self.head.config.num_layers, 1, self.head.fc.weight)
        for start in range(0, tokens.shape[1], MAX_COLUMNS):
            part = slice(start, start + MAX_COLUMNS)
            self._read_committed(Pairs(states[:, part], tokens[:, part], [tokens[:, part].shape[1]]), keys, [0])
        return keys


class Bench:
    """The model, its head, and the rows that were read, by context and number."""

    def __init__(self, model: Any, tokenizer: Any, head: Eagle3, pool: list[Prompt], shortest: int) -> None:
        self.model, self._tokenizer, self._head, self._pool = model, tokenizer, head, pool
        self.prompts = self._chosen(max(shortest, SHORTEST))
        self._read: dict[tuple[int, int], Rows] = {}

    def _chosen(self, longest: int) -> list[Prompt]:
        """`NUM_ROWS` prompts and one for the warm-up: of all categories by turns, of at most `longest` tokens."""
        kinds: dict[str, list[Prompt]] = {}
        for prompt in self._pool:
            kinds.setdefault(category(prompt.name), []).append(prompt)
        spreads = [spread(group, min(len(group), 2 * NUM_ROWS)) for group in kinds.values()]
        fitting = [[prompt for prompt in group if len(self._encoded(prompt)) <= longest] for group in spreads]
        return by_turns(fitting)[: NUM_ROWS + 1]

    def _encoded(self, prompt: Prompt) -> list[int]:
        return encode(self._tokenizer, [prompt])["input_ids"][0].tolist()

    def _text(self, prompt: Prompt) -> list[int]:
        """Without a chat's turns: after many turns without an answer the model gives none."""
        return self._tokenizer(prompt.text + "\n\n", add_special_tokens=False)["input_ids"]

    def ids(self, prompt: Prompt, context: int) -> list[int]:
        """The prompt behind others, first of its own category: the last `context` tokens."""
        kind, own, before = category(prompt.name), self._encoded(prompt), []
        room = context - len(own)
        for other in sorted(self._pool, key=lambda other: category(other.name) != kind):
            if len(before) >= room:
                break
            before += self._text(other) if other not in self.prompts else []
        if len(before) < room:
            raise ValueError(f"all prompts have {len(before) + len(own)} tokens, a context of {context} needs more")
        return (before[-room:] if room > 0 else []) + own[-context:]

    def row(self, context: int, number: int) -> Rows:
        """One row, read at its first use."""
        if (context, number) not in self._read:
            ids = torch.tensor([self.ids(self.prompts[number], context)])
            scorer: Any = make_scorer(self.model, hidden_layers=self._head.hidden_layers)
            known = ids[:, :-2]
            states = scorer.prefill(known, torch.ones_like(known, dtype=torch.bool))
            joined = torch.cat([states[layer] for layer in self._head.hidden_layers], -1)
            with torch.no_grad():
                keys = self.filled_head().read(joined, ids[:, 1:-1])
            self._read[context, number] = Rows(ids, scorer.cache, keys)
        return self._read[context, number]

    def filled_head(self) -> FilledHead:
        return FilledHead(self._head.head, self._head.hidden_layers)

    def group(self, context: int, numbers: Sequence[int]) -> Rows:
        """Rows as a batch."""
        rows, head, cache = [self.row(context, number) for number in numbers], self._head.head, DynamicCache()
        for layer, parts in enumerate(zip(*(filled_layers(row.cache) for row in rows), strict=True)):
            cache.update(torch.cat([p.keys for p in parts]), torch.cat([p.values for p in parts]), layer)
        keys = DraftingCache(head.config.layer, head.config.num_layers, len(rows), head.fc.weight)
        for number, row in enumerate(rows):
            keys.replace_row(number, row.keys)
        return Rows(torch.cat([row.ids for row in rows]), cache, keys)


class Contestants:
    """Of one cell: an object each, for all groups."""

    def __init__(self, bench: Bench, cell: Cell, drafters: Sequence[str], num_new: int) -> None:
        self._bench, self._cell, self._num_new = bench, cell, num_new
        self._heads: list[FilledHead] = []
        make: dict[str, Callable[[], list[Any]]] = {
            LOOKUPS: lambda: [*warm_start().drafters()],
            HEAD: lambda: [self._head()],
            MERGED: lambda: [self._head(), *warm_start().drafters()],
        }
        self.speculations: dict[str, TreeSpeculation | None] = {PLAIN: None, GROWING: None}
        for drafter, (shape, tree) in product(drafters, SHAPES.items()):
            self.speculations[f"{drafter}, {shape}"] = TreeSpeculation(make[drafter](), tree=tree)
        warm_up = bench.group(cell.context, [NUM_ROWS] * cell.batch)
        for name in self.speculations:
            if name.endswith(AUTO):
                self._decode(name, warm_up, 0)

    def _head(self) -> FilledHead:
        self._heads.append(self._bench.filled_head())
        return self._heads[-1]

    def measure(self, number: int, seed: int) -> dict[str, Any]:
        """One group by all contestants: seconds, tokens, choices; at T=0 how many rows equal plain's."""
        start = number * self._cell.batch
        group = self._bench.group(self._cell.context, range(start, start + self._cell.batch))
        names, rows = list(self.speculations), {}
        first, found = number * 5 % len(names), {}
        for name in names[first:] + names[:first]:
            found[name], rows[name] = self._decode(name, group, seed + number)
        for name in names if self._cell.temperature == 0 else ():
            found[name]["outputs"] = self._outputs(group, rows[PLAIN], rows[name])
        return {name: found[name] for name in names}

    def _decode(self, name: str, group: Rows, seed: int) -> tuple[dict[str, Any], list[list[int]]]:
        """One timed call, and its new tokens."""
        speculation, model, cache = self.speculations[name], self._bench.model, twin_cache(group.cache)
        options: dict[str, Any] = {"do_sample": False}
        if self._cell.temperature:
            options = {"do_sample": True, "temperature": self._cell.temperature, "top_k": 0}
        for head in self._heads:
            head.prompt_keys = group.keys
        if name == GROWING:
            use_growing_layers(cache)
        if speculation is None:
            # The token that trees read before their first step, and the copy of the cache to a larger room.
            with torch.no_grad():
                model(group.ids[:, -2:-1], **{CACHE_NAME: cache})
        else:
            options["custom_generate"] = speculation
        inputs = {"input_ids": group.ids, "attention_mask": torch.ones_like(group.ids), CACHE_NAME: cache}
        torch.manual_seed(seed)
        begin = time.perf_counter()
        out = model.generate(**inputs, **options, max_new_tokens=self._num_new)
        seconds = time.perf_counter() - begin
        eos = model.generation_config.eos_token_id
        rows = [strip_padding(row, eos) for row in out[:, group.ids.shape[1] :].tolist()]
        run: dict[str, Any] = {"seconds": seconds, "tokens": sum(map(len, rows))}
        if speculation is not None:
            run["seconds"] -= speculation.stats.seconds["prefill"]
            run["choices"] = dict(speculation.stats.choices)
        return run, rows

    def _outputs(self, group: Rows, plain: list[list[int]], rows: list[list[int]]) -> dict[str, int]:
        found = {"identical": 0, "tied": 0, "wrong": 0}
        for number, (expected, row) in enumerate(zip(plain, rows, strict=True)):
            is_whole = len(row) == self._num_new or row[-1] == self._bench.model.generation_config.eos_token_id
            if row == expected:
                found["identical"] += 1
            else:
                found["tied" if is_whole and self._shortfall(group, number, row) <= TIE else "wrong"] += 1
        return found

    @torch.no_grad()
    def _shortfall(self, group: Rows, number: int, row: list[int]) -> float:
        """By how much a token's logit falls short of the largest one in a plain pass over the text, at worst."""
        cache, tokens = DynamicCache(), torch.tensor(row)
        for layer, held in enumerate(filled_layers(group.cache)):
            cache.update(held.keys[number : number + 1], held.values[number : number + 1], layer)
        ids = torch.cat([group.ids[number, -2:], tokens[:-1]])[None]
        logits = self._bench.model(ids, **{CACHE_NAME: cache}).logits[0, 1:]
        return float((logits.amax(-1) - logits.gather(1, tokens[:, None])[:, 0]).max())


def measure(args: argparse.Namespace, bench: Bench, store: Store, progress: Progress) -> dict[str, Any]:
    """By cell: the runs of every group, with its contestants."""
    deadline, found = time.perf_counter() + 60 * args.minutes, {}
    todo = cells(args.contexts, args.batches, args.temperatures)
    task = progress.add_task("cells", total=len(todo))
    for cell in todo:
        drafters, runs, loads = cell.drafters(args.drafters), {}, [load_average()]
        made = cache(partial(Contestants, bench, cell, drafters, args.new_tokens))
        for number in range(cell.num_groups(args.groups)):
            if time.perf_counter() > deadline:
                break
            names = [prompt.name for prompt in bench.prompts[number * cell.batch : (number + 1) * cell.batch]]
            key = " | ".join(names)
            runs[key] = store.get(
                f"{cell.name}, {drafters}: {key}", lambda number=number, made=made: made().measure(number, args.seed)
            )
            loads.append(load_average())
        if runs:
            found[cell.name] = {**cell._asdict(), "runs": runs, "loads": loads}
        progress.advance(task)
    return found
