"""Grammars: a state for every branch, plain constrained output; other states are refused by name."""

import pytest
import torch
from helpers.grammars import Rising, constrained, is_rising
from helpers.tiny import padded, prompt
from transformers import LogitsProcessor

from treespec import SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.errors import UnsupportedModeError
from treespec.grammars import processor as grammar_module
from treespec.hf import GrammarProcessor


@pytest.mark.parametrize("max_states", [2048, 3])
def test_greedy_equals_plain_with_one_object_for_all_calls(target, draft, max_states, monkeypatch):
    monkeypatch.setattr(grammar_module, "MAX_STATES", max_states)
    processor = GrammarProcessor(Rising())
    for inputs in (padded(prompt(2), [0, 4]), {"input_ids": prompt(1, length=5)}):
        plain = constrained(target, inputs, processor)
        for drafter in ([TokenRecycling(), SuffixLookup()], draft):
            out = constrained(target, inputs, processor, custom_generate=TreeSpeculation(drafter, tree=8))
            assert torch.equal(out, plain)
        assert torch.equal(constrained(target, inputs, processor), plain)
        assert all(is_rising(row) for row in plain[:, inputs["input_ids"].shape[1] :].tolist())


@pytest.mark.parametrize("package", ["xgrammar.contrib.hf", "outlines.processors", "transformers_cfg.generation"])
def test_processors_with_states_are_refused_by_name_at_once(target, package):
    kind = type("LogitsProcessor", (LogitsProcessor,), {"__module__": package, "__call__": None})
    speculation = TreeSpeculation(TokenRecycling())
    with pytest.raises(UnsupportedModeError, match=rf"{package}\.LogitsProcessor keeps state.*GrammarProcessor"):
        constrained(target, {"input_ids": prompt(1)}, kind(), custom_generate=speculation)
