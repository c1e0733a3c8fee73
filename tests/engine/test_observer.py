"""Whoever watches a call sees all of it, in order, and changes nothing."""

import pytest
import torch
from helpers.toy_models import FixedLength, TableLM, ToyScorer

from treespec import SuffixLookup
from treespec.engine.loop import Run, speculate
from treespec.engine.observer import Observer
from treespec.policies import Chain

PROMPTS = torch.tensor([[1, 2, 3, 1, 2], [2, 0, 1, 3, 0]])


class Watching(Observer):
    """Writes down what it is called with."""

    def __init__(self):
        self.events, self.paths, self.steps = [], [], []
        self.tokens = [[], []]

    def __enter__(self):
        self.events.append("enter")
        return self

    def __exit__(self, kind, error, traceback):
        self.events.append("exit" if kind is None else kind.__name__)

    def around(self, processors):
        self.events.append("around")
        return processors

    def on_prefill(self, states):
        self.events.append("prefill")

    def on_verified(self, step):
        self.events.append("verified")
        assert len(step.rows) == len(step.contexts) == len(step.verdicts) == step.probs.trees.num_rows

    def on_path(self, row, probs, index, path):
        self.paths.append((row, path))

    def on_tokens(self, row, tokens):
        self.tokens[row] += tokens

    def on_step(self, step):
        self.events.append("step")
        self.steps.append(step)


def decode(*observers, stopping=None):
    mask, stopping = torch.ones_like(PROMPTS, dtype=torch.bool), stopping or FixedLength(25)
    parts = ToyScorer(TableLM(4, seed=3)), SuffixLookup()
    return speculate(Run(*parts, PROMPTS, mask, stopping, policy=Chain(3), seed=0, observers=observers))


def test_an_observer_sees_the_whole_call_in_order():
    watching = Watching()
    result = decode(watching)
    num_steps = 1 + result.stats.num_target_passes
    assert num_steps > 1
    assert watching.events == ["around", "enter", "prefill", *["verified", "step"] * num_steps, "exit"]
    assert watching.tokens == result.tokens == decode().tokens
    assert len(watching.paths) == result.stats.num_drafts + result.stats.num_first_tokens
    assert len(watching.steps) == num_steps
    spent = [sum(step.seconds.values()) for step in watching.steps]
    assert sum(spent) == pytest.approx(sum(result.stats.seconds.values()))
    assert spent[0] == pytest.approx(result.stats.seconds["prefill"])
    assert sum(len(tokens) for step in watching.steps for tokens in step.emitted) == result.stats.num_emitted_tokens


def test_an_observer_sees_how_a_call_fails():
    class Broken(FixedLength):
        def num_kept(self, row, ids, new_tokens):
            raise ZeroDivisionError

    watching = Watching()
    with pytest.raises(ZeroDivisionError):
        decode(watching, stopping=Broken(25))
    assert watching.events[-1] == "ZeroDivisionError"
