"""Grammars: a state for every branch, plain constrained output, allowed drafts; other states are refused by name."""

import json
import re
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.tiny import noisy_copy, padded, prompt, tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerFast

import treespec
from benchmarks.joint_distribution.run import g_test
from treespec import BestFirst, SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.drafters import DraftModel
from treespec.errors import ConfigError, UnsupportedModeError
from treespec.hf import GrammarProcessor, make_scorer
from treespec.hf.generation import grammar as grammar_module
from treespec.policies import AdaptiveChain

OPTIONS = {"max_new_tokens": 16, "do_sample": False}
PATTERN = r'\{"name": "[a-z]{3,6}", "age": [0-9]{1,3}\}'
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ada", "grace"]}, "age": {"enum": [7, 42]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Rising:
    """Texts whose tokens rise by at most 9, and start again below 8 after 55."""

    def __init__(self, last=0):
        self.last = last

    def fork(self):
        return Rising(self.last)

    def advance(self, token):
        assert self.mask()[token]
        self.last = token

    def mask(self):
        tokens = torch.arange(60)  # Shorter than the head.
        return tokens < 8 if self.last > 55 else (tokens > self.last) & (tokens <= self.last + 9)


def is_rising(tokens):
    tokens = list(tokens)
    return all(bool(Rising(last).mask()[token]) for last, token in zip([0, *tokens[:-1]], tokens, strict=True))


def constrained(model, inputs, processor, **options):
    options = OPTIONS | {"logits_processor": LogitsProcessorList([processor])} | options
    return model.generate(**inputs, **options)


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


@pytest.mark.parametrize("children", ["selected", "without_replacement", "iid"])
def test_sampled_texts_and_drafts_are_in_the_grammar(target, draft, children):
    speculation = TreeSpeculation(draft, tree=BestFirst(8, children=children), seed=0, record_steps=True)
    processor, inputs = GrammarProcessor(Rising()), {"input_ids": prompt(4)}
    out = constrained(target, inputs, processor, do_sample=True, custom_generate=speculation)[:, 12:].tolist()
    assert all(map(is_rising, out))
    assert speculation.stats.num_accepted_tokens > 0
    assert all_drafts_are_rising(speculation, 4)


class Spelled:
    """One text of 30 tokens, then the end."""

    def __init__(self, position=0):
        self.position = position

    def fork(self):
        return Spelled(self.position)

    def advance(self, token):
        self.position += 1

    def mask(self):
        mask = torch.zeros(64, dtype=torch.bool)
        mask[5 + 7 * self.position % 50 if self.position < 30 else 1] = True
        return mask


class Sometimes(Spelled):
    """Four tokens that are given, then two that are free, and so on."""

    def fork(self):
        return Sometimes(self.position)

    def mask(self):
        return super().mask() if self.position % 6 < 4 else torch.ones(64, dtype=torch.bool)


@pytest.mark.parametrize("policy", [8, AdaptiveChain(4)], ids=["tree", "chain"])
def test_drafters_that_were_not_asked_go_on(target, draft, policy):
    """Forced names between free tokens, with drafters that learn from every step."""
    processor, inputs = GrammarProcessor(Sometimes()), padded(prompt(2), [0, 3])
    plain = constrained(target, inputs, processor, max_new_tokens=30)
    for drafter in (draft, [draft, TokenRecycling(), SuffixLookup()], SuffixLookup()):
        speculation = TreeSpeculation(drafter, tree=policy)
        out = constrained(target, inputs, processor, max_new_tokens=30, custom_generate=speculation)
        assert torch.equal(out, plain)
        assert speculation.stats.num_accepted_tokens > 10


@pytest.mark.parametrize("do_sample", [False, True])
def test_what_is_forced_costs_no_draft_pass(target, draft, do_sample):
    options = {"max_new_tokens": 40, "eos_token_id": 1, "do_sample": do_sample}
    processor, inputs = GrammarProcessor(Spelled()), {"input_ids": prompt(2)}
    plain = constrained(target, inputs, processor, **options)
    assert plain.shape == (2, 12 + 31)
    drafter = DraftModel(make_scorer(draft))
    drafter.expand = None  # It would fail.
    speculation = TreeSpeculation(drafter, tree=8)
    assert torch.equal(constrained(target, inputs, processor, **options, custom_generate=speculation), plain)
    assert speculation.stats.mean_acceptance_length > 6


def test_lookups_propose_nothing_that_is_forbidden(target):
    speculation = TreeSpeculation(TokenRecycling(), tree=8, record_steps=True)
    processor, inputs = GrammarProcessor(Rising()), {"input_ids": prompt(2)}
    for _ in range(2):
        out = constrained(target, inputs, processor, custom_generate=speculation)
    assert torch.equal(out, constrained(target, inputs, processor))
    assert speculation.stats.num_draft_tokens > 0
    assert all_drafts_are_rising(speculation, 2)


def all_drafts_are_rising(speculation, num_rows):
    texts, is_right = {row: [] for row in range(num_rows)}, True
    for step in speculation.steps:
        for row, tree, emitted in zip(step.rows, step.trees, step.emitted, strict=True):
            paths = [[tree.token(n) for n in tree.path_to(node)[1:]] for node in range(1, tree.num_nodes)]
            is_right = is_right and all(is_rising(texts[row] + path) for path in paths)
            texts[row] += emitted
    return is_right


class SometimesRising(Rising):
    """Rising texts in which 11 is followed by 13 and 13 by 17."""

    def fork(self):
        return SometimesRising(self.last)

    def mask(self):
        following = {11: 13, 13: 17}.get(self.last)
        return super().mask() if following is None else torch.arange(60) == following


@torch.no_grad()
def constrained_distribution(model, ids, state, depth):
    """Every allowed continuation and its probability under top-k 3 and temperature 2, from plain passes."""
    if depth == 0:
        return {(): 1.0}
    logits = model(ids).logits[0, -1].double()[:60].masked_fill(~state.mask(), -torch.inf) / 2
    logits[logits < logits.topk(3).values[-1]] = -torch.inf
    found = {}
    for token in logits.isfinite().nonzero().flatten().tolist():
        fork, probability = state.fork(), float(logits.softmax(-1)[token])
        fork.advance(token)
        rest = constrained_distribution(model, torch.cat([ids, torch.tensor([[token]])], 1), fork, depth - 1)
        found |= {(token, *tokens): probability * p for tokens, p in rest.items()}
    return found


@pytest.mark.parametrize("has_draft_model", [False, True])
def test_sampled_text_follows_the_targets_constrained_distribution(target, draft, has_draft_model):
    processor, inputs = GrammarProcessor(SometimesRising(9)), {"input_ids": prompt(1, length=5)}
    options = {"do_sample": True, "top_k": 3, "temperature": 2.0, "logits_processor": LogitsProcessorList([processor])}
    exact = constrained_distribution(target, inputs["input_ids"], SometimesRising(9), 4)
    speculation, found = TreeSpeculation(draft if has_draft_model else TokenRecycling(), tree=6), Counter()
    for seed in (1, 2):
        rows = {"max_new_tokens": 4, "num_return_sequences": 400, "seed": seed}
        out = treespec.generate(target, speculation=speculation, **inputs, **options, **rows)
        found += Counter(map(tuple, out[:, 5:].tolist()))
    assert found.total() == sum(found[tokens] for tokens in exact)
    assert g_test(np.array([found[tokens] for tokens in exact]), np.array(list(exact.values()))) > 1e-3
    assert speculation.stats.num_accepted_tokens > 100


def byte_tokenizer():
    """One token per byte in the byte-level spelling, an end and padding."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)} | {"<eos>": 256, "<pad>": 257}
    fast = Tokenizer(models.BPE(vocab, []))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<eos>", pad_token="<pad>")


def xgrammar_of(tokenizer, schema):
    xgrammar = pytest.importorskip("xgrammar")
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=258, stop_token_ids=[256])
    compiler = xgrammar.GrammarCompiler(info)
    return (
        compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
        if schema
        else compiler.compile_regex(PATTERN)
    )


def llguidance_of(tokenizer, schema):
    pytest.importorskip("llguidance")
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    text = (
        LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
        if schema
        else LLMatcher.grammar_from_regex(PATTERN)
    )
    return LLMatcher(from_tokenizer(tokenizer, n_vocab=258, eos_token=256), text)


def outlines_of(tokenizer, schema):
    outlines_core = pytest.importorskip("outlines_core")
    pattern = (
        outlines_core.json_schema.build_regex_from_schema(json.dumps(schema), whitespace_pattern="")
        if schema
        else PATTERN
    )
    tokens = {tokenizer.decode([i]): [i] for i in range(256) if len(tokenizer.decode([i])) == 1}
    return outlines_core.Index(pattern, outlines_core.Vocabulary(256, {t: i for t, i in tokens.items() if t.isascii()}))


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["regex", "json-schema"])
@pytest.mark.parametrize("make", [xgrammar_of, llguidance_of, outlines_of], ids=["xgrammar", "llguidance", "outlines"])
def test_packages(make, schema):
    tokenizer = byte_tokenizer()
    processor = GrammarProcessor(make(tokenizer, schema))
    target = tiny_llama(258, max_position_embeddings=128)
    inputs = tokenizer(["Ada is", "someone else"], return_tensors="pt", padding=True, padding_side="left")
    options = {"max_new_tokens": 90, "eos_token_id": 256, "pad_token_id": 257}
    plain = constrained(target, inputs, processor, **options)
    for drafter in (TokenRecycling(), noisy_copy(target)):
        speculation = TreeSpeculation(drafter, tree=8, seed=0)
        assert torch.equal(constrained(target, inputs, processor, **options, custom_generate=speculation), plain)
        out = constrained(target, inputs, processor, **options, do_sample=True, custom_generate=speculation)
        for row in torch.nn.utils.rnn.pad_sequence([*plain, *out], batch_first=True, padding_value=257):
            text = tokenizer.decode(row[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            if schema:
                found = json.loads(text)
                assert found["name"] in ("ada", "grace")
                assert found["age"] in (7, 42)
            else:
                assert re.fullmatch(PATTERN, text)


@pytest.mark.parametrize("package", ["xgrammar.contrib.hf", "outlines.processors.structured"])
def test_processors_with_states_are_refused_by_name_at_once(target, package):
    kind = type("LogitsProcessor", (LogitsProcessor,), {"__module__": package, "__call__": None})
    speculation = TreeSpeculation(TokenRecycling())
    with pytest.raises(UnsupportedModeError, match=rf"{package}\.LogitsProcessor keeps state.*GrammarProcessor"):
        constrained(target, {"input_ids": prompt(1)}, kind(), custom_generate=speculation)


def test_an_object_that_is_no_grammar_is_refused():
    with pytest.raises(ConfigError, match=r"fork\(\), advance\(token\) and mask\(\), got str"):
        GrammarProcessor("[a-z]+")
