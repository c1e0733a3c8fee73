"""`tree="auto"` through `generate`: the same output, choices with reasons, seeds that repeat at any times."""

from itertools import count

import numpy as np
import pytest
import torch
from helpers.grammars import Sometimes
from helpers.tiny import identical, prompt
from transformers import LogitsProcessorList

import treespec
from treespec import Control
from treespec.drafters import DraftModel, Merge, SuffixLookup, TokenRecycling
from treespec.engine import stats as engine_stats
from treespec.hf import make_scorer
from treespec.policies import BestFirst
from treespec.policies.control.contract import Choice, StepControl

CHEAP = {1: 1000.0, 64: 1100.0}
"""The time of a pass: far more than any draft of a tiny model takes."""
OPTIONS = {"max_new_tokens": 24, "eos_token_id": None, "pad_token_id": 0}


@pytest.mark.parametrize("num_rows", [1, 3])
def test_greedy_equals_plain_and_says_why(target, draft, num_rows, monkeypatch):
    monkeypatch.setattr(DraftModel, "num_weights", 1)  # As far smaller than the target as drafts are.
    ids = prompt(num_rows)
    control = Control(max_nodes=8, pass_ms=CHEAP, is_timed=False)
    for drafter in (draft, [TokenRecycling(), SuffixLookup()]):
        speculation = treespec.TreeSpeculation(drafter, tree=control, record_steps=True)
        identical(target, ids, speculation, times=2, **OPTIONS)
        assert speculation.stats.num_accepted_tokens > 0
        first, *choices = [step.choice for step in speculation.steps]
        assert first is None, "nothing precedes the first token"
        assert sum(speculation.stats.choices.values()) == len(choices) == speculation.stats.num_target_passes
        assert all(choice.name in choice.tokens_per_second and choice.reason for choice in choices)
        assert max(tree.num_nodes for step in speculation.steps for tree in step.trees) <= 8
        assert speculation.stats.choices.most_common(1)[0][0] in speculation.stats.summary()
        assert "\n" not in speculation.stats.summary()


@pytest.mark.parametrize(("num_rows", "do_sample"), [(2, False), (1, True)])
def test_tokens_that_a_grammar_forces(target, draft, num_rows, do_sample, monkeypatch):
    """Forced runs are drafts without a policy; what was learned stays from call to call."""
    monkeypatch.setattr(DraftModel, "num_weights", 1)  # As far smaller than the target as drafts are.
    ids, processor = prompt(num_rows), treespec.grammars.GrammarProcessor(Sometimes())
    options = OPTIONS | {"do_sample": do_sample, "logits_processor": LogitsProcessorList([processor])}
    control = Control(pass_ms=CHEAP, is_timed=False)
    for drafter in (draft, [TokenRecycling(), SuffixLookup()]):
        speculation = treespec.TreeSpeculation(drafter, tree=control, seed=3 if do_sample else None)
        outputs = [target.generate(ids, **options, custom_generate=speculation) for _ in range(2)]
        learned = control._learned
        if drafter is draft or not do_sample:  # The others remember earlier calls.
            assert torch.equal(outputs[0], outputs[1])
        assert all(token == 5 + 7 * at % 50 for at, token in enumerate(outputs[0][0, 12:].tolist()) if at % 6 < 4)
        assert speculation.stats.mean_acceptance_length > 1.5
        if not do_sample:
            assert torch.equal(outputs[0], target.generate(ids, **options))
            target.generate(ids, **options, custom_generate=speculation)
            assert control._learned is learned


def test_a_seed_repeats_whatever_the_clock_says(target, draft, monkeypatch):
    control = Control(pass_ms=CHEAP)
    seeded = treespec.TreeSpeculation(draft, tree=control, seed=5)
    free = treespec.TreeSpeculation(draft, tree=control)
    outputs, chosen = [], []
    for run in range(3):
        rng, ticks = np.random.default_rng(run), count()
        monkeypatch.setattr(engine_stats, "perf_counter", lambda rng=rng, t=ticks: 9.0 * next(t) + rng.uniform(0, 9))
        outputs.append(target.generate(prompt(2), do_sample=True, **OPTIONS, custom_generate=seeded))
        chosen.append(seeded.stats.choices)
        target.generate(prompt(2, seed=run), do_sample=True, **OPTIONS, custom_generate=free)  # It learns.
    assert all(torch.equal(out, outputs[0]) for out in outputs)
    assert chosen[0] == chosen[1] == chosen[2]
    assert seeded.stats.num_accepted_tokens > 0


class EveryStep(StepControl):
    """A control of one's own: a tree of 8 in every step."""

    current, choice = BestFirst(8), Choice("tree of 8", "always", {})

    @property
    def max_nodes(self):
        return 8

    def begin(self, session, drafter, draft_share):
        assert session.is_on_host
        assert drafter.num_weights > 0 < draft_share

    def choose(self, num_rows, context, room=1):
        return room > 0

    def trim(self, trees):
        return trees

    def learn(self, step, draft_ms, other_ms):
        assert step.emitted
        assert min(draft_ms, other_ms) >= 0


def test_a_control_of_ones_own_drafts_in_every_step(target, draft):
    merge = Merge([DraftModel(make_scorer(draft)), TokenRecycling(), SuffixLookup()])
    speculation = treespec.TreeSpeculation(merge, tree=EveryStep())
    stats = identical(target, prompt(2), speculation, times=2, **OPTIONS | {"max_new_tokens": 40})
    assert stats.choices["tree of 8"] == stats.num_target_passes
