"""What verification costs beside the target pass that scored the tree, paired within one process.

Every round takes the next context, drafts a tree of 32 nodes of every kind, scores it in one pass and verifies it with
every rule that admits it, as the engine does: processors on demand, then the rule's walk. Temperature and top-p are
the caller's processors, so both the draft's and the target's laws went through them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from benchmarks.acceptance import binary_paths, rank_paths
from benchmarks.prompts import DEMO, encode
from benchmarks.recorded import scorers, without_layers
from benchmarks.settings import load_average
from treespec.drafters import DraftModel
from treespec.engine import judge
from treespec.hf.cpu import prepack_linears
from treespec.hf.processors import TreeProcessors
from treespec.laws import TargetLaws
from treespec.policies import BestFirst, Chain, Paths
from treespec.protocols import CausalScorer, History, Proposal, Session, TreePolicy
from treespec.sampling import truncate_law
from treespec.tree import IID, SELECTED, WITHOUT_REPLACEMENT, TreeBatch
from treespec.verification import RULES, resolve
from treespec.verification.transport import MAX_SUPPORT

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


class TruncatedDraft(DraftModel):
    """A draft model whose laws are cut to a few tokens."""

    support: int | None = None

    def expand(self, tokens: Tensor, parents: Tensor) -> Proposal:
        proposal = super().expand(tokens, parents)
        return proposal if self.support is None else Proposal(truncate_law(proposal.probs, self.support))


class Bench:
    """Two scorers on one prompt after another."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.model = model
        self.draft_model = without_layers(model)
        self.target, self._draft = scorers(model, self.draft_model)
        warpers = [TemperatureLogitsWarper(TEMPERATURE), TopPLogitsWarper(TOP_P)]
        self.processors = TreeProcessors(warpers, num_rows=1)
        self._prompts = [encode(tokenizer, [prompt])["input_ids"] for prompt in DEMO]
        self.generator = torch.Generator().manual_seed(seed)

    def start(self, number: int) -> History:
        """Prefill the target with a prompt."""
        ids = self._prompts[number % len(self._prompts)]
        self.target.prefill(ids[:, :-1], torch.ones_like(ids[:, :-1], dtype=torch.bool))
        return History(ids, torch.ones_like(ids, dtype=torch.bool))

    def grow(self, history: History, policy: TreePolicy, support: int | None) -> TreeBatch:
        draft = TruncatedDraft(self._draft, policy)
        draft.support = support
        size = self._draft.vocab_size
        session = Session(history, True, self.processors, self.generator, self.target.device, size, [0])
        draft.start(session)
        return draft.propose(NUM_NODES)


def rules_for(trees: TreeBatch, support: int | None) -> list[str]:
    """The rules that admit the trees; those of small supports only where the draft was cut on purpose."""
    admitted = [name for name, rule in RULES.items() if rule.admission.objection(trees) is None]
    return [name for name in admitted if RULES[name].admission.max_support is None or support is not None]


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
    fresh = replace(trees)  # Nothing derived is cached yet.
    coins, draws = (torch.rand(fresh.tokens.shape, dtype=torch.float64, generator=bench.generator) for _ in range(2))
    start = time.perf_counter()
    laws = TargetLaws(fresh, logits, history, bench.processors, [0], is_sampling=True)
    (verdict,) = judge(resolve(rule, True, fresh), fresh, laws, coins, draws)
    return 1e3 * (time.perf_counter() - start), verdict.num_accepted


def measure_times(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, num_rounds: int, seed: int
) -> dict[str, Any]:
    """Raw times by number of threads: `passes` by kind of tree, plain and packed, and `rules` by kind and rule."""
    before = torch.get_num_threads()
    try:
        bench = Bench(model, tokenizer, seed)
        with prepack_linears(bench.draft_model):  # Drafting is not timed.
            return {f"{count} threads": _rounds(bench, num_rounds, count) for count in THREADS}
    finally:
        torch.set_num_threads(before)


def _rounds(bench: Bench, num_rounds: int, num_threads: int) -> dict[str, Any]:
    torch.set_num_threads(num_threads)
    passes: dict[str, list[float]] = defaultdict(list)
    rules: dict[str, list[dict[str, float]]] = defaultdict(list)
    loads: list[float] = []
    for number in track(range(-1, num_rounds), description=f"time, {num_threads} threads"):
        loads.append(load_average())
        history = bench.start(number)
        for kind, (policy, support) in KINDS.items():
            trees = bench.grow(history, policy, support)
            logits, elapsed = timed_pass(bench.target, trees)
            for name in rules_for(trees, support):
                cost, accepted = timed_verification(name, trees, logits, history, bench)
                if number >= 0:
                    sample = {"ms": cost, "share": cost / elapsed, "accepted": accepted}
                    rules[f"{kind}, {name}"].append(sample)
            if number >= 0:
                passes[f"{kind}, plain"].append(elapsed)
    return {
        "passes_ms": dict(passes) | _packed_passes(bench, num_rounds),
        "rules": dict(rules),
        "load_average": [min(loads), median(loads), max(loads)],
    }


def _packed_passes(bench: Bench, num_rounds: int) -> dict[str, list[float]]:
    """The same pass with packed weights, the fastest that there is here."""
    history = bench.start(0)
    trees = bench.grow(history, *KINDS["best first, selected"])
    with prepack_linears(bench.model):
        timed_pass(bench.target, trees)
        return {"packed": [timed_pass(bench.target, trees)[1] for _ in range(num_rounds)]}
