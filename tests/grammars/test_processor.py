"""Grammars: a state for every branch, plain constrained output; other states are refused by name."""

import pytest
import torch
from helpers.grammars import Rising, check_constrained, constrained, is_rising
from helpers.tiny import lookups, padded, prompt
from transformers import LogitsProcessor

from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import UnsupportedModeError
from treespec.grammars import GrammarProcessor
from treespec.grammars import processor as grammar_module


@pytest.mark.parametrize("max_states", [2048, 3])
def test_greedy_equals_plain_with_one_object_for_all_calls(target, draft, max_states, monkeypatch):
    monkeypatch.setattr(grammar_module, "MAX_STATES", max_states)
    processor = GrammarProcessor(Rising())
    for inputs in (padded(prompt(2), [0, 4]), {"input_ids": prompt(1, length=5)}):
        for speculation in (lookups(), TreeSpeculation(draft, tree=8)):
            plain = check_constrained(target, inputs, processor, speculation)
        assert torch.equal(constrained(target, inputs, processor), plain)
        assert all(is_rising(row) for row in plain[:, inputs["input_ids"].shape[1] :].tolist())


@pytest.mark.parametrize("package", ["xgrammar.contrib.hf", "outlines.processors", "transformers_cfg.generation"])
def test_processors_with_states_are_refused_by_name_at_once(target, package):
    kind = type("LogitsProcessor", (LogitsProcessor,), {"__module__": package, "__call__": None})
    speculation = TreeSpeculation(TokenRecycling())
    with pytest.raises(UnsupportedModeError, match=rf"{package}\.LogitsProcessor keeps state.*GrammarProcessor"):
        constrained(target, {"input_ids": prompt(1)}, kind(), custom_generate=speculation)
