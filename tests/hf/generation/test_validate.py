"""`treespec.generate` takes prompts in every form that `model.generate` takes, and strings; else it says what to do."""

import pytest
import torch
from helpers.tiny import padded, prompt
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BatchEncoding, PreTrainedTokenizerFast

import treespec
from treespec.errors import ConfigError

OPTIONS = {"max_new_tokens": 10, "do_sample": False}


@pytest.fixture(scope="module")
def tokenizer():
    fast = Tokenizer(models.WordLevel({"<pad>": 0} | {f"w{i}": i for i in range(1, 64)}, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>")


def decode(model, draft, *args, **kwargs):
    return treespec.generate(model, *args, speculation=treespec.TreeSpeculation(draft, tree=8), **kwargs, **OPTIONS)


def test_ids_in_every_form(target, draft):
    ids = prompt(2)
    plain = target.generate(ids, **OPTIONS)
    lists = ids.tolist()
    for inputs in (ids, lists, {"input_ids": ids}, BatchEncoding({"input_ids": ids}), {"input_ids": lists}):
        assert torch.equal(decode(target, draft, inputs), plain)
    assert torch.equal(decode(target, draft, lists[0]), plain[:1])
    assert torch.equal(treespec.generate(target, ids, treespec.TreeSpeculation(draft), **OPTIONS), plain)


def test_inputs_spread_over_the_keyword_arguments(target, draft):
    inputs = padded(prompt(2), [0, 4])
    plain = target.generate(**inputs, **OPTIONS)
    assert torch.equal(decode(target, draft, **inputs), plain)
    assert torch.equal(decode(target, draft, inputs["input_ids"], attention_mask=inputs["attention_mask"]), plain)


def test_strings_are_encoded_and_padded_on_the_left(target, draft, tokenizer):
    texts = ["w1 w2 w3 w4 w5", "w7 w8"]
    tokenizer.padding_side = "right"
    single = target.generate(torch.tensor([[1, 2, 3, 4, 5]]), **OPTIONS)
    both = target.generate(**tokenizer(texts, return_tensors="pt", padding=True, padding_side="left"), **OPTIONS)
    assert torch.equal(decode(target, draft, texts[0], tokenizer=tokenizer), single)
    assert torch.equal(decode(target, draft, texts, tokenizer=tokenizer), both)
    own = treespec.TreeSpeculation(draft, tokenizer=tokenizer)
    assert torch.equal(treespec.generate(target, texts[0], own, **OPTIONS), single)


@pytest.mark.parametrize(
    ("inputs", "spread", "words"),
    [
        ("w1 w2", {}, "give tokenizer=tokenizer too"),
        (["w1", "w2"], {}, "give tokenizer=tokenizer too"),
        (None, {}, "got neither"),
        (prompt(1), {"input_ids": prompt(1)}, "got both"),
        (None, {"inputs_embeds": torch.zeros(1, 3, 32)}, "not as inputs_embeds"),
        ([[1, 2], [3]], {}, "different lengths"),
        ([1.5, 2.5], {}, "token ids"),
        ([], {}, "empty"),
        (3, {}, "must be an int64 tensor"),
        ({"input_ids": None}, {}, "must be an int64 tensor"),
        ({"attention_mask": torch.ones(1, 3)}, {}, "must be an int64 tensor"),
    ],
)
def test_anything_else_is_refused_by_name(target, draft, inputs, spread, words):
    with pytest.raises(ConfigError, match=words):
        decode(target, draft, inputs, **spread)


def test_a_speculation_is_needed(target):
    with pytest.raises(ConfigError, match="must be a TreeSpeculation, got NoneType"):
        treespec.generate(target, prompt(1))
