"""Grammars of four packages: JSON schemas, regular expressions and what else each has, in trees and plain."""

import json
import re

import pytest
import torch
from helpers.text_tokenizers import byte_level
from helpers.tiny import noisy_copy, tiny_llama
from transformers import LogitsProcessorList

from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import ConfigError
from treespec.grammars import GrammarProcessor, token_enforcer

PATTERN = r'\{"name": "[a-z]{3,6}", "age": [0-9]{1,3}\}'
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ada", "grace"]}, "age": {"enum": [7, 42]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SIZE, END, PADDING = 259, 2, 0


@pytest.fixture
def tokenizer():
    """Three special tokens, and one per byte in the byte-level spelling."""
    return byte_level(SIZE)


def xgrammar_of(tokenizer, kind):
    xgrammar = pytest.importorskip("xgrammar")
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=SIZE, stop_token_ids=[END])
    compiler = xgrammar.GrammarCompiler(info)
    if kind == "json-schema":
        return compiler.compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    return compiler.compile_grammar('root ::= "a" root "b" | "c"')


def llguidance_of(tokenizer, kind):
    pytest.importorskip("llguidance")
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    grammar = {
        "json-schema": lambda: LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False}),
        "grammar": lambda: LLMatcher.grammar_from_lark('start: "a" start "b" | "c"'),
    }[kind]()
    return LLMatcher(from_tokenizer(tokenizer, n_vocab=SIZE, eos_token=END), grammar)


def outlines_of(tokenizer, kind):
    """Its regular expressions alone."""
    outlines_core = pytest.importorskip("outlines_core")
    pattern = outlines_core.json_schema.build_regex_from_schema(json.dumps(SCHEMA), whitespace_pattern="")
    tokens = {tokenizer.decode([i]): [i] for i in range(3, SIZE) if len(tokenizer.decode([i])) == 1}
    return outlines_core.Index(pattern, outlines_core.Vocabulary(END, {t: i for t, i in tokens.items() if t.isascii()}))


def enforcer_of(tokenizer, kind):
    enforcer = pytest.importorskip("lmformatenforcer")
    parser = {
        "json-schema": lambda: enforcer.JsonSchemaParser(SCHEMA),
        "regex": lambda: enforcer.RegexParser(PATTERN),
        "grammar": lambda: enforcer.SequenceParser(
            [
                enforcer.StringParser("aa"),
                enforcer.UnionParser([enforcer.StringParser("c"), enforcer.RegexParser("a{1}cb")]),
                enforcer.StringParser("b"),
                enforcer.StringParser("b"),
            ]
        ),
    }[kind]()
    return token_enforcer(parser, tokenizer)


def assert_is_right(text, kind):
    if kind == "json-schema":
        found = json.loads(text)
        assert found.keys() == {"name", "age"}
        assert found["name"] in ("ada", "grace")
        assert found["age"] in (7, 42)
    else:
        assert re.fullmatch("(a*)(cb*)?", text)
        assert "c" not in text or text.count("a") == text.count("b")


CASES = [(make, "json-schema") for make in (xgrammar_of, llguidance_of, outlines_of, enforcer_of)]
CASES += [(make, "grammar") for make in (xgrammar_of, llguidance_of, enforcer_of)]


@pytest.mark.parametrize(("make", "kind"), CASES, ids=[f"{make.__name__[:-3]}-{kind}" for make, kind in CASES])
def test_packages(tokenizer, make, kind):
    processor = GrammarProcessor(make(tokenizer, kind))
    target = tiny_llama(SIZE, max_position_embeddings=256)
    inputs = tokenizer(["Ada is", "someone else"], return_tensors="pt", padding=True)
    options = {"max_new_tokens": 140, "eos_token_id": END, "pad_token_id": PADDING}
    options["logits_processor"] = LogitsProcessorList([processor])
    plain = target.generate(**inputs, **options, do_sample=False)
    greedy = TreeSpeculation(TokenRecycling(), tree=8, tokenizer=tokenizer)
    assert torch.equal(target.generate(**inputs, **options, do_sample=False, custom_generate=greedy), plain)
    sampled = TreeSpeculation(noisy_copy(target), tree=8, seed=0, tokenizer=tokenizer)
    texts = [*plain, *target.generate(**inputs, **options, do_sample=True, custom_generate=sampled)]
    assert greedy.stats.num_accepted_tokens > 0
    assert sampled.stats.num_accepted_tokens > 0
    for row in texts:
        assert_is_right(tokenizer.decode(row[inputs["input_ids"].shape[1] :], skip_special_tokens=True), kind)


def test_an_enforcer_for_all_calls_keeps_no_texts(tokenizer):
    enforcer = enforcer_of(tokenizer, "regex")
    processor = GrammarProcessor(enforcer)
    texts = [tuple(map(ord, text)) for text in ('{"name": "ada', '{"name": "grace", "age": 7}', '{"name": "1')]
    ids = [tuple(tokenizer.encode(bytes(text).decode())) for text in texts]
    for _ in range(2):
        assert processor.allowed(0, ids[0]).sum() == 27  # Letters, and the quote.
        assert processor.allowed(0, ids[1]).nonzero().flatten().tolist() == [END]
        assert processor.allowed(0, ids[2]) is None
    assert enforcer.prefix_states == {}


def test_what_is_not_a_grammar_or_has_no_end_is_refused(tokenizer):
    with pytest.raises(ConfigError, match=r"fork\(\), advance\(token\) and mask\(\), got str"):
        GrammarProcessor("[a-z]+")
    enforcer = pytest.importorskip("lmformatenforcer")
    with pytest.raises(ConfigError, match=r"CharacterLevelParser.*got str"):
        token_enforcer("[a-z]+", tokenizer)
    with pytest.raises(ConfigError, match=r"the ends \[\]"):
        token_enforcer(enforcer.RegexParser("[a-z]+"), tokenizer, end_tokens=[])
