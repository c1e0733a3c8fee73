"""Runs of the real engine that are slow by one cause each, on toy models and a clock that only they move."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from helpers.toy_models import FixedLength, TableLM, ToyScorer

import treespec
from treespec.engine import loop, stats
from treespec.engine.observer import Observer
from treespec.lab.selftest.drafters import Static
from treespec.lab.trace import Recorder, TraceFile
from treespec.protocols import Proposal
from treespec.sampling import NoProcessors
from treespec.tree import TokenTree, TreeBatch

VOCAB_SIZE = 48
PASS_MS = {1: 20.0, 8: 20.4, 16: 22.0, 32: 30.0, 64: 56.0}


class Clock:
    """Milliseconds pass when somebody says so."""

    def __init__(self):
        self.ms = 0.0

    def __call__(self):
        return self.ms / 1e3

    def advance(self, ms):
        self.ms += ms


class TimedScorer(ToyScorer):
    """A toy target whose passes take what `pass_ms` says."""

    def __init__(self, model, clock, prefill_ms, pass_ms):
        super().__init__(model)
        self._clock, self._prefill_ms, self._pass_ms = clock, prefill_ms, pass_ms

    def prefill(self, ids, mask):
        self._clock.advance(self._prefill_ms * ids.shape[1])
        return super().prefill(ids, mask)

    def extend(self, tokens, parents):
        count = int((parents != -2).sum())
        pass_ms, sizes = self._pass_ms, list(self._pass_ms)
        above = next((n for n in sizes if n >= count), sizes[-1])
        below = max(n for n in sizes if n <= min(count, sizes[-1]))
        share = (count - below) / (above - below) if above > below else 0.0
        self._clock.advance(pass_ms[below] + share * (pass_ms[above] - pass_ms[below]))
        return super().extend(tokens, parents)


class Guesser(Static):
    """A draft that knows the target after some contexts and is wrong after the others.

    `accuracy`: the share of contexts that it knows, by depth, the last one for all deeper ones. Elsewhere it gives
    each token the probability of another. `temperature` is the draft's own; `is_shifted`: wrong everywhere, and sure.
    """

    def __init__(self, model, clock, accuracy=(0.8,), level_ms=1.0, temperature=1.0, is_shifted=False):
        self._model, self._clock, self._accuracy, self._level_ms = model, clock, accuracy, level_ms
        self._temperature, self._is_shifted = temperature, is_shifted

    def expand(self, frontier):
        self._clock.advance(self._level_ms)
        texts = [self._session.history.row(b).tolist() for b in range(len(frontier.tokens))]
        rows = [
            torch.stack([self._probs([*text, *(path or ())], len(path or ())) for path in paths])
            for text, paths in zip(texts, frontier.path_tokens(), strict=True)
        ]
        return Proposal(torch.stack(rows))

    def _probs(self, text, depth):
        logits = self._model.logits(text) / self._temperature
        # A hash of integers is the same in every process.
        is_known = hash((tuple(text[-3:]), len(text))) % 997 / 997 < self._accuracy[min(depth, len(self._accuracy) - 1)]
        return (logits if is_known and not self._is_shifted else logits.roll(11)).softmax(-1)

    def propose(self, max_depth):
        return self._policy.grow(self, max_depth)


class Useless(Static):
    """Proposes what another does, and many children of the root that are never right; says who proposed what."""

    def __init__(self, drafter, num_wrong):
        self._drafter, self._num_wrong = drafter, num_wrong

    def start(self, session):
        self._drafter.start(session)

    def propose(self, max_depth):
        self._trees = self._drafter.propose(max_depth).trees
        trees = []
        for tree in self._trees:
            known = {tree.token(child) for child in tree.children(0)}
            wrong = [token for token in range(VOCAB_SIZE) if token not in known][: self._num_wrong]
            tokens = [*tree.token_list, *wrong]
            trees.append(TokenTree(torch.tensor(tokens), torch.tensor([*tree.parent_list, *[0] * len(wrong)])))
        return TreeBatch.from_trees(trees)

    def proposers(self, row, tokens):
        tree, node, found = self._trees[row], 0, []
        for token in tokens:
            node = next((c for c in tree.children(node) if tree.token(c) == token), None) if node is not None else None
            found.append(["Wrong"] if node is None else ["Right"])
        return found


class Seldom(Guesser):
    """Drafts in every fifth step only."""

    count = 0

    def propose(self, max_depth):
        self.count += 1
        if self.count % 5:
            return TreeBatch.from_trees([TokenTree.chain([int(root)]) for root in self.root_tokens])
        return super().propose(max_depth)


class SlowProcessors(NoProcessors):
    def __init__(self, clock, ms):
        self._clock, self._ms = clock, ms

    def __call__(self, ids, logits, row):
        self._clock.advance(self._ms)
        return super().__call__(ids, logits, row)


@dataclass(frozen=True)
class Run:
    """The settings of a run; as they are it is healthy."""

    draft: type | partial = Guesser
    tree: object = treespec.BestFirst(8, depth=4)
    scale: float = 6.0
    num_rows: int = 1
    num_prompt: int = 12
    num_new: int = 56
    prefill_ms: float = 0.1
    on_token_ms: float = 0.0
    processor_ms: float = 0.0
    rule_ms: float = 0.0
    is_sampling: bool = False
    pass_ms: dict | None = None

    def decode(self, path, monkeypatch):
        """Decode; the statistics, what is known of the call, and the prompts' lengths."""
        clock = Clock()
        monkeypatch.setattr(stats, "perf_counter", clock)
        model = TableLM(VOCAB_SIZE, seed=1, scale=self.scale)
        drafter = self.draft(model, clock)
        generator = torch.Generator().manual_seed(0)
        prompts = torch.randint(VOCAB_SIZE, (self.num_rows, self.num_prompt), generator=generator)
        processors = SlowProcessors(clock, self.processor_ms) if self.processor_ms else NoProcessors()
        about = {
            "pass_ms": {str(nodes): ms for nodes, ms in (self.pass_ms or PASS_MS).items()},
            "prompt_ids": prompts.tolist(),
            "processors": ["RepetitionPenaltyLogitsProcessor"] if self.processor_ms else [],
        }
        recorder = Recorder(TraceFile(path), about, drafter)
        run = loop.Run(
            TimedScorer(model, clock, self.prefill_ms, self.pass_ms or PASS_MS),
            drafter,
            prompts,
            torch.ones_like(prompts, dtype=torch.bool),
            FixedLength(self.num_prompt + self.num_new),
            policy=self.tree,
            processors=processors,
            is_sampling=self.is_sampling,
            seed=5,
            verification=SlowRule(clock, self.rule_ms) if self.rule_ms else "auto",
            observers=[recorder, SlowReader(clock, self.on_token_ms)],
        )
        return loop.speculate(run).stats, about, [self.num_prompt] * self.num_rows


class SlowReader(Observer):
    """Takes its time over every token."""

    def __init__(self, clock, token_ms):
        self.clock, self.token_ms = clock, token_ms

    def on_tokens(self, row, tokens):
        self.clock.advance(self.token_ms * len(tokens))


class SlowRule:
    """The target walk, slowly."""

    name, is_lossless = "slow", True

    def __init__(self, clock, ms):
        self._clock, self._ms = clock, ms

    def reason_against(self, trees):
        return None

    def verify(self, tree, target_probs, rng):
        self._clock.advance(self._ms)
        return treespec.verification.TargetWalk().verify(tree, target_probs, rng)


HEALTHY = Run()
SAMPLED = replace(HEALTHY, is_sampling=True, tree=treespec.Chain(4), scale=4.0, num_new=90)
guess = partial(partial, Guesser)
HEALTHY_RUNS = {
    "tree": HEALTHY,
    "chain": replace(HEALTHY, tree=treespec.Chain(3)),
    "sampled": SAMPLED,
    "batch": replace(HEALTHY, num_rows=4, tree=treespec.BestFirst(4)),
}
SLOW_RUNS = {
    "draft too expensive": replace(HEALTHY, draft=guess(level_ms=12.0)),
    "acceptance low": replace(HEALTHY, draft=guess(accuracy=(0.08,))),
    "drafts too deep": replace(HEALTHY, draft=guess(accuracy=(0.9, 0.9, 0.05), level_ms=2.0), tree=treespec.Chain(12)),
    "a drafter that is hardly ever right": replace(HEALTHY, draft=lambda m, c: Useless(Guesser(m, c), 28)),
    "tree too large": replace(HEALTHY, tree=treespec.BestFirst(60, depth=4)),
    "batch too large": replace(HEALTHY, num_rows=8),
    "host work": replace(HEALTHY, on_token_ms=15.0),
    "prompt longer than the answer": replace(HEALTHY, num_prompt=240, num_new=40, prefill_ms=3.0),
    "processors expensive": replace(HEALTHY, processor_ms=12.0),
    "verification expensive": replace(SAMPLED, rule_ms=30.0),
    "draft's tokens do not fit": replace(HEALTHY, draft=guess(is_shifted=True)),
    "draft's temperature does not fit": replace(SAMPLED, draft=guess(accuracy=(1.0,), temperature=4.0)),
    "hostile text": replace(HEALTHY, scale=0.8, draft=guess(accuracy=(0.1,))),
    "hardly any drafts": replace(HEALTHY, draft=Seldom),
}
ONLY_BY_TRACE = {
    "a drafter that is hardly ever right",
    "draft's tokens do not fit",
    "draft's temperature does not fit",
    "hostile text",
}
CONTRIBUTING = {
    "a large tree, whose drafts are expensive for its size": (
        replace(HEALTHY, tree=treespec.BestFirst(60, depth=8), draft=guess(level_ms=4.0)),
        "tree too large",
    ),
    "a large batch of trees that one row could afford": (
        replace(HEALTHY, num_rows=8, tree=treespec.BestFirst(24, depth=4), pass_ms={1: 20.0, 32: 34.0, 256: 240.0}),
        "batch too large",
    ),
    "a long prompt, and drafts that gain little": (
        replace(SLOW_RUNS["prompt longer than the answer"], draft=guess(accuracy=(0.3,))),
        "prompt longer than the answer",
    ),
    "a hostile text, where no tree is worth its pass": (
        replace(SLOW_RUNS["hostile text"], tree=treespec.BestFirst(60, depth=4)),
        "hostile text",
    ),
}
"""Runs whose cause brings others about, which are not to come before it."""
