"""`tree="auto"` through `generate`: the same output, choices with reasons, seeds that repeat at any times."""

from itertools import count

import numpy as np
import pytest
import torch
from helpers.tiny import prompt
from transformers import LogitsProcessorList

import treespec
from treespec import Control
from treespec.drafters import DraftModel, Merge, SuffixLookup, TokenRecycling
from treespec.engine import stats as engine_stats
from treespec.hf import make_scorer

CHEAP = {1: 1000.0, 64: 1100.0}
"""Of passes: far more than any draft of a tiny model takes."""
OPTIONS = {"max_new_tokens": 24, "eos_token_id": None, "pad_token_id": 0}


@pytest.mark.parametrize("num_rows", [1, 3])
def test_greedy_equals_plain_and_says_why(target, draft, num_rows):
    ids = prompt(num_rows)
    plain = target.generate(ids, do_sample=False, **OPTIONS)
    control = Control(max_nodes=8, pass_ms=CHEAP, is_timed=False)
    for drafter in (draft, [TokenRecycling(), SuffixLookup()]):
        speculation = treespec.TreeSpeculation(drafter, tree=control, record_steps=True)
        for _ in range(2):
            out = target.generate(ids, do_sample=False, **OPTIONS, custom_generate=speculation)
            assert torch.equal(out, plain)
        assert speculation.stats.num_accepted_tokens > 0
        choices = [step.choice for step in speculation.steps]
        assert sum(speculation.stats.choices.values()) == len(choices) == speculation.stats.num_target_passes
        assert all(choice.name in choice.tokens_per_second and choice.reason for choice in choices)
        assert max(tree.num_nodes for step in speculation.steps for tree in step.trees) <= 8
        assert speculation.stats.choices.most_common(1)[0][0] in speculation.stats.summary
        assert "\n" not in speculation.stats.summary


class HalfForced:
    """A grammar: four tokens that are given, then two that are free, and so on."""

    def __init__(self, position=0):
        self.position = position

    def fork(self):
        return HalfForced(self.position)

    def advance(self, token):
        self.position += 1

    def mask(self):
        if self.position % 6 >= 4:
            return torch.ones(64, dtype=torch.bool)
        return torch.arange(64) == 5 + 7 * self.position % 50


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_tokens_that_a_grammar_forces(target, draft, num_rows, do_sample):
    """Forced runs are drafts without a policy; what was learned stays from call to call."""
    ids, processor = prompt(num_rows), treespec.hf.GrammarProcessor(HalfForced())
    options = OPTIONS | {"do_sample": do_sample, "logits_processor": LogitsProcessorList([processor])}
    control = Control(pass_ms=CHEAP, is_timed=False)
    for drafter in (draft, [TokenRecycling(), SuffixLookup()]):
        speculation = treespec.TreeSpeculation(drafter, tree=control, seed=3 if do_sample else None)
        outputs = [target.generate(ids, **options, custom_generate=speculation) for _ in range(3)]
        learned = control._learned
        if drafter is draft or not do_sample:  # The others remember earlier calls.
            assert torch.equal(outputs[0], outputs[1])
        assert all(token == 5 + 7 * at % 50 for at, token in enumerate(outputs[0][0, 12:].tolist()) if at % 6 < 4)
        assert speculation.stats.mean_acceptance_length > 1.5
        if not do_sample:
            assert torch.equal(outputs[0], target.generate(ids, **options))
            target.generate(ids, **options, custom_generate=speculation)
            assert control._learned is learned


def test_auto_is_the_default(target, draft):
    ids = prompt(1)
    speculation = treespec.TreeSpeculation(draft)
    assert isinstance(speculation.options.policy, Control)
    out = target.generate(ids, do_sample=False, **OPTIONS, custom_generate=speculation)
    assert torch.equal(out, target.generate(ids, do_sample=False, **OPTIONS))


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


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_slow_part_of_a_merge_is_left_out_unless_no_clock_may_be_read(target, draft, is_timed):
    ids, options = prompt(2), OPTIONS | {"max_new_tokens": 40, "do_sample": False}
    slow = DraftModel(make_scorer(draft))
    merge = Merge([slow, TokenRecycling(), SuffixLookup()])
    proposed, number = [], [0]
    inner, values = slow.propose, merge._part_values
    values.clock = lambda: number[0]

    def propose(max_depth):
        proposed.append(max_depth)
        number[0] += 1000
        return inner(max_depth)

    slow.propose = propose
    speculation = treespec.TreeSpeculation(merge, tree=Control(is_timed=is_timed, pass_ms=CHEAP))
    for _ in range(3):
        out = target.generate(ids, **options, custom_generate=speculation)
        assert torch.equal(out, target.generate(ids, **options))
    assert (len(proposed) < speculation.total_stats.num_target_passes - 3) == is_timed
