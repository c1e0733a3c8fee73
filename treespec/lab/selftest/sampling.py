"""Sampled continuations through the whole engine against the target's exact distribution, by G-tests.

A vocabulary of 50,000 tokens has too many continuations to count, so the caller's top-k is set to 4: after three tokens
at most 64 are left, whose exact probabilities take 21 uncached passes. A repetition penalty makes the processors
depend on the path. Next to the joint distribution two of its parts are tested, so that a failure can be named: the
drafted tokens against the distributions that are stored with them, and the tokens after a leaf (bonus tokens) against
the target's distribution there. A p-value below 0.001 is confirmed by as many samples again, with other seeds.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from treespec.engine.stats import StepRecord
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.lab.selftest.report import FAILED, OK, SKIPPED, WARNING, Finding
from treespec.lab.selftest.subject import Subject
from treespec.lab.selftest.table_drafter import TableDrafter
from treespec.policies import Chain, KAry
from treespec.protocols import TreePolicy
from treespec.testing import Context, Continuations, enumerate_continuations, g_test, uncached
from treespec.tree import TreeBatch

NUM_TOKENS = 3
SUSPECT = 1e-3
OPTIONS: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "top_k": 4, "top_p": 1.0, "repetition_penalty": 1.3}
MIN_PER_CONTEXT = 20
PROMPT_LENGTH = 4
"""Tokens before the samples: every row of a batch pays for them."""
FEW = 200


@dataclass
class Tally:
    """What was drawn: whole continuations, drafted tokens, bonus tokens."""

    texts: Counter[Context] = field(default_factory=Counter)
    drafted: list[int] = field(default_factory=list)
    expected: Tensor | float = 0.0
    """How often each token should have been drafted [V]: the sum of the stored distributions."""
    log_probs: list[tuple[float, float]] = field(default_factory=list)
    """The stored log-probability of every drafted token, and its expectation."""
    bonus: Counter[tuple[Context, int]] = field(default_factory=Counter)

    def add(self, texts: Sequence[Context], steps: Sequence[StepRecord]) -> None:
        self.texts.update(texts)
        emitted: dict[int, Context] = {}
        for number, step in enumerate(steps):
            for row, tree, verdict, tokens in zip(step.rows, step.trees, step.verdicts, step.emitted, strict=True):
                before = emitted.get(row, ())
                path = tuple(tree.token(node) for node in verdict.path[1:])
                if verdict.is_bonus and len(tokens) == len(verdict.path):
                    self.bonus[(*before, *path), verdict.next_token] += 1
                emitted[row] = (*before, *tokens)
                if number == 0:
                    self._add_draft(tree)

    def _add_draft(self, tree: Any) -> None:
        """The root's first sampled child."""
        for child in tree.children(0):
            probs = tree.draft_probs_of(child)
            if probs is not None:
                self.drafted.append(tree.token(child))
                self.expected = self.expected + probs.double()
                logs = probs.clamp(min=1e-30).log()
                self.log_probs.append((float(logs[tree.token(child)]), float(probs @ logs)))
                return


@dataclass(frozen=True)
class Sampler:
    """Draws continuations of the beginning of the subject's last prompt.

    Args:
        num_samples: at most so many, and as many again where a p-value is suspect.
        seconds: or until so much time is spent.
        advance: called with the share that is done.
    """

    subject: Subject
    num_samples: int
    seconds: float
    advance: Callable[[float], None] = lambda share: None

    @property
    def prompt(self) -> Tensor:
        return self.subject.prompts[-1][:PROMPT_LENGTH]

    def table(self) -> Continuations:
        caught: list[Any] = []

        def catch(model: Any, input_ids: Tensor, logits_processor: Any, *args: Any, **kwargs: Any) -> Tensor:
            caught.append(logits_processor)
            return input_ids

        self.generate(1, catch)
        return enumerate_continuations(uncached(self.subject.model, self.prompt, caught[0]), NUM_TOKENS)

    def draw(self, speculation: TreeSpeculation, seed: int) -> Tally:
        tally = Tally()
        start = perf_counter()
        batch = 0
        num_rows = max(16, min(256, self.num_samples, 2**22 // self.subject.facts.num_logits))
        while tally.texts.total() < self.num_samples and (not batch or self._has_time(start)):
            changes = {"seed": seed + batch, "record_steps": True}
            speculation.options = replace(speculation.options, **changes)
            out = self.generate(num_rows, speculation)
            new = out[:, len(self.prompt) :].tolist()
            tally.add([tuple(row) for row in new], speculation.steps)
            batch += 1
            self.advance(max(tally.texts.total() / self.num_samples, (perf_counter() - start) / self.seconds))
        return tally

    def _has_time(self, start: float) -> bool:
        return self.subject.facts.ranks.agree("clock", perf_counter() - start < self.seconds)

    def generate(self, num_rows: int, speculation: Any) -> Tensor:
        inputs = self.subject.inputs(self.prompt, num_rows)
        lengths = {"min_new_tokens": NUM_TOKENS, "max_new_tokens": NUM_TOKENS, "pad_token_id": 0}
        return self.subject.model.generate(**inputs, **lengths, **OPTIONS, custom_generate=speculation)


def check_sampling(sampler: Sampler, speculation: TreeSpeculation | None, name: str) -> list[Finding]:
    """G-tests of the given speculation; None: of the given rule with a drafter that draws from a distorted target."""
    table = sampler.table()
    seed = sampler.subject.seed
    if speculation is None:
        speculation = _distorted(sampler, table, seed)
        if speculation is None:
            rule = sampler.subject.verification
            return [Finding(name, SKIPPED, f"rule '{rule.name}' verifies none of the self-test's trees")]
    values = {}
    tally = Tally()
    for attempt in (0, 1):
        tally = sampler.draw(speculation, seed + 10_000 * attempt)
        fresh = p_values(tally, table)
        values = {part: max(value, values.get(part, 0.0)) for part, value in fresh.items()}
        if min(values.values()) >= SUSPECT:
            break
    numbers = ", ".join(f"{part} p = {value:.2g}" for part, value in values.items())
    numbers = f"{tally.texts.total()} continuations of {NUM_TOKENS} tokens, {len(table.joint)} possible: {numbers}"
    if min(values.values()) >= SUSPECT:
        if tally.texts.total() < FEW:
            return [Finding(name, WARNING, f"too few samples to find much, give it more seconds ({numbers})")]
        return [Finding(name, OK, numbers)]
    return [Finding(name, FAILED, f"{cause(values, tally)} ({numbers})")]


def p_values(tally: Tally, table: Continuations) -> dict[str, float]:
    """By part: joint, and drafts and bonus tokens where there are any."""
    values = {"joint": g_test(tally.texts, table.joint)}
    if isinstance(tally.expected, Tensor):
        expected = (tally.expected / tally.expected.sum()).tolist()
        values["drafts"] = g_test(Counter(tally.drafted), dict(enumerate(expected)))
    counts = Counter[Context]()
    for (context, _), count in tally.bonus.items():
        counts[context] += count
    groups = [context for context, count in counts.items() if count >= MIN_PER_CONTEXT and context in table.probs]
    if groups:
        total = sum(counts[context] for context in groups)
        probs = {(c, t): prob * counts[c] / total for c in groups for t, prob in table.probs[c].items()}
        bonus = {cell: count for cell, count in tally.bonus.items() if cell[0] in groups}
        values["bonus tokens"] = g_test(bonus, probs, len(groups))
    return values


def cause(values: dict[str, float], tally: Tally) -> str:
    """The part that deviates, in words."""
    if values.get("drafts", 1.0) < SUSPECT:
        drawn, stored = np.mean(tally.log_probs, axis=0)
        kind = "sharper" if drawn > stored else "flatter"
        return (
            f"draft probabilities: children were drawn from a {kind} distribution than the one stored with them; "
            "temperature or another processor is missing in one of the two"
        )
    if values.get("bonus tokens", 1.0) < SUSPECT:
        return "bonus tokens: the token after a leaf is not drawn from the target's distribution there"
    return (
        "acceptance or residual: the token after rejected children is not drawn from the residual distribution, or "
        "children are accepted with a wrong probability"
    )


def _distorted(sampler: Sampler, table: Continuations, seed: int) -> TreeSpeculation | None:
    """Speculation with the given rule on the first kind of sampled trees that it verifies."""
    subject = sampler.subject
    kinds: list[TreePolicy] = [KAry((2, 2), children=c) for c in ("without_replacement", "iid", "selected")]
    for policy in (*kinds, Chain(2)):
        drafter = TableDrafter(table, subject.facts.num_logits)
        speculation = TreeSpeculation(drafter, tree=policy, seed=seed, record_steps=True)
        sampler.generate(1, speculation)
        trees = TreeBatch.from_trees([tree for step in speculation.steps for tree in step.trees])
        if subject.verification == "auto" or subject.verification.reason_against(trees) is None:
            return TreeSpeculation(drafter, tree=policy, verification=subject.verification)
    return None
