"""Sampled continuations through the whole engine against the target's exact distribution, by G-tests.

A vocabulary of 50,000 tokens has too many continuations to count, so the caller's top-k is set to 4: after three tokens
at most 64 are left, whose exact probabilities take 21 uncached passes. A token before them, which the prompt's pass
gives without a draft, is the same in all. A repetition penalty makes the processors depend on the path. Next to the
joint distribution two of its parts are tested, so that a failure can be named: the drafted tokens against the
distributions that are stored with them, and the tokens after a leaf (bonus tokens) against the target's distribution
there. A p-value below 0.001 is confirmed by as many samples again, with other seeds.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor
from transformers import LogitsProcessorList

from treespec.engine.stats import StepRecord
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.lab.selftest.drafters import TableDrafter
from treespec.lab.selftest.report import FAILED, OK, SKIPPED, WARNING, Outcome
from treespec.lab.selftest.subject import Subject
from treespec.policies import Chain, KAry
from treespec.protocols import TreePolicy
from treespec.testing import Context, Continuations, FirstToken, enumerate_continuations, g_test, uncached
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
    """Counts of samples: whole continuations, drafted tokens, bonus tokens."""

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
            if step.is_prompt:  # Its token is the same in all texts.
                continue
            for row, tree, verdict, tokens in zip(step.rows, step.trees, step.verdicts, step.emitted, strict=True):
                before = emitted.get(row, ())
                path = tuple(tree.token(node) for node in verdict.path[1:])
                if verdict.is_bonus and len(tokens) == len(verdict.path):
                    self.bonus[(*before, *path), verdict.next_token] += 1
                emitted[row] = (*before, *tokens)
                if number == 1:
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


def check_sampling(subject: Subject) -> Outcome:
    """G-tests of the given rule with a drafter that draws from a distorted target."""
    table = _table(subject)
    speculation = _distorted(subject, table)
    if speculation is None:
        return SKIPPED, f"rule '{subject.verification.name}' verifies none of the self-test's trees"
    return _test(subject, table, speculation)


def check_given_sampling(subject: Subject) -> Outcome:
    """G-tests of the given speculation."""
    assert subject.speculation is not None
    return _test(subject, _table(subject), copy(subject.speculation))


def _test(subject: Subject, table: Continuations, speculation: TreeSpeculation) -> Outcome:
    values: dict[str, float] = {}
    tally = Tally()
    for attempt in (0, 1):
        tally = _draw(subject, speculation, subject.seed + 10_000 * attempt)
        fresh = p_values(tally, table)
        values = {part: max(value, values.get(part, 0.0)) for part, value in fresh.items()}
        if min(values.values()) >= SUSPECT:
            break
    numbers = ", ".join(f"{part} p = {value:.2g}" for part, value in values.items())
    numbers = f"{tally.texts.total()} continuations of {NUM_TOKENS} tokens, {len(table.joint)} possible: {numbers}"
    if min(values.values()) < SUSPECT:
        return FAILED, f"{cause(values, tally)} ({numbers})"
    if tally.texts.total() < FEW:
        return WARNING, f"too few samples to find much, give it more seconds ({numbers})"
    return OK, numbers


def _draw(subject: Subject, speculation: TreeSpeculation, seed: int) -> Tally:
    """As many samples as there are to be, or time for."""
    tally, start, batch = Tally(), perf_counter(), 0
    num_rows = max(16, min(256, subject.num_samples, 2**22 // subject.facts.num_logits))
    has_time = True
    while tally.texts.total() < subject.num_samples and has_time:
        speculation.options = replace(speculation.options, seed=seed + batch, record_steps=True)
        new = _generate(subject, num_rows, speculation)[:, -NUM_TOKENS:].tolist()
        tally.add([tuple(row) for row in new], speculation.steps)
        batch += 1
        spent = (perf_counter() - start) / subject.seconds
        has_time = subject.facts.ranks.agree("clock", spent < 1)
        subject.advance(max(tally.texts.total() / subject.num_samples, spent))
    return tally


def _generate(subject: Subject, num_rows: int, speculation: Any) -> Tensor:
    context = _context(subject)
    inputs = subject.inputs(context[:-1], num_rows)
    lengths = {"min_new_tokens": 1 + NUM_TOKENS, "max_new_tokens": 1 + NUM_TOKENS, "pad_token_id": 0}
    forced = LogitsProcessorList([FirstToken([context.tolist()])])
    return subject.model.generate(**inputs, **lengths, **OPTIONS, logits_processor=forced, custom_generate=speculation)


def _table(subject: Subject) -> Continuations:
    """The exact distribution, under the processors that `generate` makes of `OPTIONS`."""
    caught: list[Any] = []

    def catch(model: Any, input_ids: Tensor, logits_processor: Any, *args: Any, **kwargs: Any) -> Tensor:
        caught.append(logits_processor)
        return input_ids

    _generate(subject, 1, catch)
    return enumerate_continuations(uncached(subject.model, _context(subject), caught[0]), NUM_TOKENS)


def _context(subject: Subject) -> Tensor:
    """The tokens before the counted ones, int64 [P]: the prompt and the token that is forced after it."""
    context = subject.prompts[-1][:PROMPT_LENGTH]
    return context if len(context) > 1 else context.repeat(2)


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


def _distorted(subject: Subject, table: Continuations) -> TreeSpeculation | None:
    """Speculation with the given rule on the first kind of sampled trees that it verifies."""
    kinds: list[TreePolicy] = [KAry((2, 2), children=c) for c in ("without_replacement", "iid", "selected")]
    for policy in (*kinds, Chain(2)):
        drafter = TableDrafter(table, subject.facts.num_logits)
        speculation = TreeSpeculation(drafter, tree=policy, seed=subject.seed, record_steps=True)
        _generate(subject, 1, speculation)
        trees = TreeBatch.from_trees([tree for step in speculation.steps for tree in step.trees])
        if subject.verification == "auto" or subject.verification.reason_against(trees) is None:
            return TreeSpeculation(drafter, tree=policy, verification=subject.verification)
    return None
