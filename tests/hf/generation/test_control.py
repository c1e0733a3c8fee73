"""`tree="auto"` through `generate`: the same output, choices with reasons, seeds that repeat at any times."""

from itertools import count

import numpy as np
import pytest
import torch
from helpers.tiny import prompt

import treespec
from treespec import Control
from treespec.drafters import SuffixLookup, TokenRecycling
from treespec.engine import stats as engine_stats

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
