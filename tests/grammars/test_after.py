"""Grammars that begin after a marker: free before, constrained after it, in plain `generate` and across one tree."""

import json
from collections import Counter

import pytest
import torch
from helpers.grammars import Rising, check_constrained, constrained, constrained_distribution, drafted_texts, is_rising
from helpers.text_tokenizers import byte_fallback, byte_level
from helpers.tiny import lookups, padded, prompt, tiny_llama
from transformers import LogitsProcessorList

import treespec
from treespec import BestFirst, SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.errors import ConfigError
from treespec.grammars import GrammarProcessor
from treespec.grammars.after import AfterState, marker_of
from treespec.testing import g_test


def free_and_risen(row, marker):
    """A text up to the end of the marker, and what follows; None where there is no marker."""
    row, size = list(row), len(marker)
    ends = [end for end in range(size, len(row) + 1) if row[end - size : end] == list(marker)]
    return (row[: ends[0]], row[ends[0] :]) if ends else (row, None)


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_greedy_trees_equal_plain_output_across_the_marker(target, draft, num_tokens):
    inputs = padded(prompt(3), [0, 4, 2])
    size = inputs["input_ids"].shape[1]
    free = target.generate(**inputs, max_new_tokens=24, do_sample=False)[:, size:].tolist()
    marker = free[0][6 : 6 + num_tokens]
    processor = GrammarProcessor(Rising(), after=marker)
    plain = constrained(target, inputs, processor, max_new_tokens=24)
    parts = [free_and_risen(row, marker) for row in plain[:, size:].tolist()]
    assert parts[0][1]
    for (before, risen), row in zip(parts, free, strict=True):
        assert row[: len(before)] == before
        assert risen is None or is_rising(risen)
    drafted = []
    for drafter in ([TokenRecycling(), SuffixLookup()], draft):
        speculation = TreeSpeculation(drafter, tree=12, record_steps=True)
        check_constrained(target, inputs, processor, speculation, times=2, max_new_tokens=24)
        drafted += drafted_texts(speculation, 3)
    risen = [free_and_risen(text, marker)[1] for text in drafted]
    assert all(is_rising(text) for text in risen if text)
    assert sum(bool(text) for text in risen) > 10


class Reading:
    """An oracle that reads the whole text again: everything is allowed up to the marker, then rising tokens."""

    def __init__(self, marker, tokens=()):
        self.marker, self.tokens = marker, tokens

    def fork(self):
        return Reading(self.marker, self.tokens)

    def advance(self, token):
        self.tokens = (*self.tokens, token)

    def mask(self):
        risen = free_and_risen(self.tokens, self.marker)[1]
        if risen is None:
            return torch.ones(64, dtype=torch.bool)
        return Rising(risen[-1] if risen else 0).mask()


@pytest.mark.parametrize(("children", "rule"), [("without_replacement", "traversal"), ("selected", "target_walk")])
def test_sampled_text_follows_the_targets_distribution_across_the_marker(target, draft, children, rule):
    """Four tokens of 400 rows; the marker is the likeliest first token, so that many trees hold it."""
    ids = prompt(1, length=5)
    marker = [int(target(ids).logits[0, -1].argmax())]
    exact = constrained_distribution(target, ids, Reading(marker), 4)
    assert 0.2 < sum(share for text, share in exact.items() if marker[0] in text) < 0.99
    speculation = TreeSpeculation(draft, tree=BestFirst(6, children), verification=rule)
    options = {"do_sample": True, "top_k": 3, "temperature": 2.0, "max_new_tokens": 4, "num_return_sequences": 400}
    processors = LogitsProcessorList([GrammarProcessor(Rising(), after=marker)])
    out = treespec.generate(target, ids, speculation, seed=1, logits_processor=processors, **options)
    assert g_test(Counter(map(tuple, out[:, 5:].tolist())), exact) > 1e-3
    assert speculation.stats.num_accepted_tokens > 50


def test_a_json_schema_after_a_thinking_block():
    """By xgrammar and a marker of several tokens, which are found by their text."""
    xgrammar = pytest.importorskip("xgrammar")
    tokenizer = byte_level(300)
    end = tokenizer.eos_token_id
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=300, stop_token_ids=[end])
    schema = {"type": "object", "properties": {"age": {"enum": [7, 42]}}, "required": ["age"]}
    schema["additionalProperties"] = False
    grammar = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(schema), any_whitespace=False)
    target = tiny_llama(300)
    ids = tokenizer("Think.", return_tensors="pt").input_ids
    options = {"max_new_tokens": 40, "eos_token_id": end, "pad_token_id": 0}
    free = tokenizer.decode(target.generate(ids, do_sample=False, **options)[0, ids.shape[1] :])
    marker = free[9:13]
    processor = GrammarProcessor(grammar, after=marker, tokenizer=tokenizer)
    speculation = lookups(tokenizer=tokenizer)
    plain = check_constrained(target, {"input_ids": ids}, processor, speculation, times=2, **options)
    text = tokenizer.decode(plain[0, ids.shape[1] :], skip_special_tokens=True)
    thought, _, answer = text.partition(marker)
    assert free.startswith(thought)
    assert json.loads(answer[answer.index("{") :])["age"] in (7, 42)


def test_branches_that_reach_the_marker_have_states_of_their_own():
    state = AfterState(Rising(), marker_of([3, 5], None))
    for token in (60, 3, 3):
        state.advance(token)
        assert state.mask().all()
    one, other = state.fork(), state.fork()
    one.advance(5)
    other.advance(5)
    one.advance(7)
    assert one.mask().equal(Rising(7).mask())
    assert other.mask().equal(Rising().mask())
    assert state.mask().all()


@pytest.mark.parametrize(("make", "size"), [(byte_level, 300), (byte_fallback, 600)])
@pytest.mark.parametrize("marker", ["◁/think▷", " so:", "\n\n"])
def test_a_text_is_found_however_many_tokens_spell_it(make, size, marker):
    """Letters outside of ASCII take several tokens each, and some tokenizers drop a text's first space."""
    tokenizer = make(size)
    state = AfterState(Rising(), marker_of(marker, tokenizer))
    tokens = tokenizer("some words" + marker, add_special_tokens=False).input_ids
    for number, token in enumerate(tokens):
        assert bool(state.mask().all()), number
        state.advance(token)
    assert state.mask().equal(Rising().mask())


@pytest.mark.parametrize("after", ["", [], [-1], 5, ["</think>"], "</think>"])
def test_invalid_markers_are_refused(after):
    words = "give the tokenizer" if after == "</think>" else "after must be a text or token ids"
    with pytest.raises(ConfigError, match=words):
        GrammarProcessor(Rising(), after=after)
