"""The way from `generate` to a pass of the target is short: few frames, few kinds of objects, few walks of modules."""

import inspect
import sys
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from helpers import weight
from helpers.tiny import prompt
from helpers.zoo import build
from torch import nn

import treespec
from treespec.drafters import TokenRecycling

PACKAGE = str(Path(treespec.__file__).parent)
MOST_FRAMES = 6
MOST_WALKS = {"eval": 3, "train": 4}
"""By mode: one of them is transformers' own, one reads the dtype of the first weight."""
CARRIERS = {"Options", "Call", "Run", "Session"}
"""Dataclasses that carry a call's settings to the library's parts, from the `Options` of a `TreeSpeculation` on."""
OPTIONS = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


def by_custom_generate(model, ids, speculation, **options):
    return model.generate(ids, custom_generate=speculation, **options)


@pytest.mark.parametrize(("kind", "tree"), [("llama", "auto"), ("qwen3_5_text", 8)])
def test_few_frames_lie_between_generate_and_a_pass(kind, tree):
    passes = []
    target, speculation = build(kind), treespec.TreeSpeculation(TokenRecycling(), tree=tree)

    def keep(module, inputs):
        passes.append([frame.function for frame in inspect.stack() if frame.filename.startswith(PACKAGE)])

    vars(keep)["serves_trees"] = True
    by_custom_generate(target, prompt(2), speculation, **OPTIONS)  # Checks of the model at its first use are over.
    target.register_forward_pre_hook(keep)
    by_custom_generate(target, prompt(2), speculation, **OPTIONS)
    if kind == "llama":
        treespec.generate(target, prompt(2), speculation, **OPTIONS)  # A frame more.
    assert len(passes) > 2
    assert max(map(len, passes)) <= MOST_FRAMES, passes


@pytest.mark.parametrize("mode", MOST_WALKS)
def test_a_call_walks_the_models_modules_once(target, draft, mode, monkeypatch):
    speculation = treespec.TreeSpeculation(draft, tree=8)
    by_custom_generate(target, prompt(2), speculation, **OPTIONS)
    walks, plain = Counter(), nn.Module.named_modules

    def counted(self, *args, **kwargs):
        walks[self] += 1
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "named_modules", counted)
    target.train(mode == "train")
    by_custom_generate(target, prompt(2), speculation, **OPTIONS)
    assert target.training == (mode == "train")
    target.eval()
    assert walks[target] <= MOST_WALKS[mode]
    assert walks[draft] == 0


def test_few_kinds_of_objects_carry_a_call():
    kinds = {
        kind.__name__
        for name in weight.closure("treespec.hf.generation.speculation")
        for kind in vars(sys.modules[name]).values()
        if isinstance(kind, type) and is_dataclass(kind)
        if {"policy", "is_sampling", "seed", "observers", "processors", "criteria"}
        & {field.name for field in fields(kind)}
    }
    assert kinds == CARRIERS
