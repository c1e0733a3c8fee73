"""What verification costs, relative to the target pass that scored the tree, paired within one process.

Every round takes the next context and drafts a tree of 32 nodes of every kind. Each rule that supports it verifies it
right after a pass over it, as in the engine: with whatever the pass left in the processor's caches, the processors on
demand, then the rule itself. That pass runs from packed weights, the fastest that there is here; a pass of plain linear
layers over the same tree is timed next to it. Temperature and top-p are the caller's processors, applied to both the
draft's and the target's distributions.

Finished rounds can be kept, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from benchmarks.common.acceptance import binary_paths, rank_paths
from benchmarks.common.prompts import DEMO, encode
from benchmarks.common.recorded import without_layers
from benchmarks.common.settings import load_average
from treespec.drafters import DraftModel
from treespec.engine.target_probs import TargetProbs
from treespec.hf import TreeScorer
from treespec.hf.cpu import prepack_linears
from treespec.hf.generation.processors import TreeProcessors
from treespec.literature.transport import MAX_SUPPORT
from treespec.policies import BestFirst, Chain, Paths
from treespec.protocols import CausalScorer, Frontier, History, Proposal, Session, TreePolicy
from treespec.sampling import truncate_probs
from treespec.tree import IID, SELECTED, WITHOUT_REPLACEMENT, TreeBatch
from treespec.verification import RULES, resolve
from treespec.verification.dispatch import verify_batch

NUM_NODES = 32
THREADS = (1, 2)
TEMPERATURE, TOP_P = 0.8, 0.95
KINDS: dict[str, tuple[TreePolicy, int | None]] = {
    "best first, selected": (BestFirst(NUM_NODES, SELECTED), None),
    "best first, sampled": (BestFirst(NUM_NODES, WITHOUT_REPLACEMENT), None),
    "by rank, without replacement": (Paths(rank_paths(NUM_NODES), WITHOUT_REPLACEMENT), None),
    "binary, i.i.d.": (Paths(binary_paths(NUM_NODES), IID), None),
    f"binary, i.i.d., draft's top {MAX_SUPPORT}": (Paths(binary_paths(NUM_NODES), IID), MAX_SUPPORT),
    "chain": (Chain(NUM_NODES - 1), None),
}


Round = dict[str, Any]
Keep = Callable[[str, Callable[[], Round]], Round]
"""Gives what is known under a key, or computes and keeps it."""


class TruncatedDraft(DraftModel):
    """A draft model whose distributions are cut to a few tokens."""

    support: int | None = None

    def expand(self, frontier: Frontier) -> Proposal:
        proposal = super().expand(frontier)
        return proposal if self.support is None else Proposal(truncate_probs(proposal.probs, self.support))


class Bench:
    """One target twice, with plain and with packed linear layers, and a draft of it, on one prompt after another."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.packed_model, self.draft_model = twin(model), without_layers(twin(model))
        self.plain, self.packed, self._draft = map(TreeScorer, (model, self.packed_model, self.draft_model))
        warpers = [TemperatureLogitsWarper(TEMPERATURE), TopPLogitsWarper(TOP_P)]
        self.processors = TreeProcessors(warpers, num_rows=1)
        self._prompts = [encode(tokenizer, [prompt])["input_ids"] for prompt in DEMO]
        self.generator, self._seed = torch.Generator(), seed

    def start(self, number: int) -> History:
        """Prefill both targets with a prompt, and seed the round."""
        self.generator.manual_seed(self._seed * 1000 + number)
        ids = self._prompts[number % len(self._prompts)]
        for target in (self.plain, self.packed):
            target.prefill(ids[:, :-1], torch.ones_like(ids[:, :-1], dtype=torch.bool))
        return History(ids, torch.ones_like(ids, dtype=torch.bool))

    def grow(self, history: History, policy: TreePolicy, support: int | None) -> TreeBatch:
        draft = TruncatedDraft(self._draft)
        draft.support = support
        size = self._draft.vocab_size
        session = Session(history, True, self.processors, self.generator, self.packed.device, size, [0], policy)
        draft.start(session)
        return draft.propose(NUM_NODES)


def rules_for(trees: TreeBatch, support: int | None) -> list[str]:
    """The rules that support the trees; those of small supports only where the draft was cut on purpose."""
    supported = [name for name, rule in RULES.items() if rule.reason_against(trees) is None]
    return [name for name in supported if RULES[name].requirements.max_support is None or support is not None]


def timed_pass(target: CausalScorer, trees: TreeBatch) -> tuple[Tensor, float]:
    """Raw logits [1, N, V] of one pass over the trees, and its milliseconds."""
    start = time.perf_counter()
    logits = target.extend(trees.tokens, trees.parents).logits
    elapsed = 1e3 * (time.perf_counter() - start)
    target.commit([[]])
    return logits, elapsed


def timed_verification(
    rule: str, trees: TreeBatch, logits: Tensor, history: History, bench: Bench
) -> tuple[float, int]:
    """Milliseconds of what the engine calls verification, and the accepted tokens."""
    fresh = replace(trees)  # Without cached derived values.
    coins, draws = (torch.rand(fresh.tokens.shape, dtype=torch.float64, generator=bench.generator) for _ in range(2))
    start = time.perf_counter()
    probs = TargetProbs(fresh, logits, history, bench.processors, [0], is_sampling=True)
    (verdict,) = verify_batch(resolve(rule, True, fresh), fresh, probs, coins, draws)
    return 1e3 * (time.perf_counter() - start), verdict.num_accepted


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """Modules of its own over the same weights, so that packing one model's layers leaves the other's alone."""
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})


def measure_times(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    num_rounds: int,
    seed: int,
    keep: Keep = lambda key, compute: compute(),
) -> dict[str, Any]:
    """Raw times by number of threads: `passes_ms` by kind of tree, plain and packed, and `rules` by kind and rule.

    Every round goes through `keep` under a key of its own.
    """
    before = torch.get_num_threads()
    try:
        bench = Bench(model, tokenizer, seed)
        with prepack_linears(bench.draft_model), prepack_linears(bench.packed_model):
            return {f"{count} threads": _rounds(bench, num_rounds, count, keep) for count in THREADS}
    finally:
        torch.set_num_threads(before)


def _rounds(bench: Bench, num_rounds: int, num_threads: int, keep: Keep) -> dict[str, Any]:
    torch.set_num_threads(num_threads)
    _round(bench, 0)  # Warms up.
    rounds = [
        keep(f"time, {num_threads} threads, {number}", lambda number=number: _round(bench, number))
        for number in track(range(num_rounds), description=f"time, {num_threads} threads")
    ]
    passes: dict[str, list[float]] = defaultdict(list)
    rules: dict[str, list[dict[str, float]]] = defaultdict(list)
    for found in rounds:
        for kind, times in found["passes_ms"].items():
            passes[kind] += times
        for key, sample in found["rules"].items():
            rules[key].append(sample)
    loads = [found["load_average"] for found in rounds]
    return {
        "passes_ms": dict(passes),
        "rules": dict(rules),
        "load_average": [min(loads), median(loads), max(loads)],
    }


def _round(bench: Bench, number: int) -> Round:
    """One context: trees of every kind, each scored and verified by every rule that supports it."""
    passes: dict[str, list[float]] = {}
    rules: dict[str, dict[str, float]] = {}
    history, load = bench.start(number), load_average()
    for kind, (policy, support) in KINDS.items():
        trees = bench.grow(history, policy, support)
        _, plain = timed_pass(bench.plain, trees)
        packed_passes = []
        for name in rules_for(trees, support):
            logits, packed = timed_pass(bench.packed, trees)
            cost, accepted = timed_verification(name, trees, logits, history, bench)
            shares = {"share": cost / plain, "packed_share": cost / packed}
            rules[f"{kind}, {name}"] = {"ms": cost, **shares, "accepted": accepted}
            packed_passes.append(packed)
        passes |= {f"{kind}, plain": [plain], f"{kind}, packed": packed_passes}
    return {"passes_ms": passes, "rules": rules, "load_average": load}
