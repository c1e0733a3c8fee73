"""`treespec.generate` takes prompts in every form that `model.generate` takes, and strings; else it says what to do."""

from copy import deepcopy

import pytest
import torch
from helpers.tiny import padded, prompt
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BatchEncoding, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import treespec
from treespec.errors import ConfigError, UnsupportedModeError

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
    named = [{"input_ids": ids}, BatchEncoding({"input_ids": ids}), {"input_ids": lists}, {"input_ids": ids.numpy()}]
    for inputs in (ids, lists, *named):
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


def test_what_a_tokenizer_returns_as_lists(target, draft, tokenizer):
    """Spread over the arguments too, of one text or several."""
    for texts in ("w1 w2 w3", ["w1 w2 w3"], ["w1 w2 w3", "w4"]):
        padding = {} if isinstance(texts, str) else {"padding": True, "padding_side": "left"}
        encoded = tokenizer(texts if padding else [texts], return_tensors="pt", **padding)
        plain = target.generate(**encoded, **OPTIONS)
        inputs = tokenizer(texts, **padding)
        assert isinstance(inputs["attention_mask"], list)
        assert torch.equal(decode(target, draft, inputs), plain)
        assert torch.equal(decode(target, draft, **inputs), plain)


def test_masks_and_positions_as_lists(target, draft):
    inputs = padded(prompt(2), [0, 4])
    plain = target.generate(**inputs, **OPTIONS)
    for is_bool in (False, True):
        mask = (inputs["attention_mask"].bool() if is_bool else inputs["attention_mask"]).tolist()
        positions = (inputs["attention_mask"].cumsum(1) - 1).tolist()
        given = {"input_ids": inputs["input_ids"].tolist(), "attention_mask": mask, "position_ids": positions}
        assert torch.equal(decode(target, draft, given), plain)


def test_types_of_tokens_that_the_model_does_not_take(target, draft, tokenizer):
    typed = deepcopy(tokenizer)
    typed.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert "token_type_ids" in typed("w1")
    found, expected = (decode(target, draft, "w1 w2", tokenizer=one) for one in (typed, tokenizer))
    assert torch.equal(found, expected)
    sizes = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}
    gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()
    with pytest.raises(UnsupportedModeError, match="token_type_ids"):
        decode(gpt2, draft, "w1 w2", tokenizer=typed)


@pytest.mark.parametrize("texts", ["", ["w1", "", "w3"]], ids=str)
def test_texts_without_a_token(target, draft, tokenizer, texts):
    with pytest.raises(ConfigError, match=r"the prompt is empty: text \d has no token .*bos_token"):
        decode(target, draft, texts, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("inputs", "spread", "words"),
    [
        ("w1 w2", {}, "give tokenizer=tokenizer too"),
        (["w1", "w2"], {}, "give tokenizer=tokenizer too"),
        (None, {}, "got neither"),
        (prompt(1), {"input_ids": prompt(1)}, "got both"),
        (None, {"inputs_embeds": torch.zeros(1, 3, 32)}, "not as inputs_embeds"),
        ([[1, 2], [3]], {}, "different lengths"),
        ([[True, False, True]], {}, r"lists of token ids, got \[\[True"),
        ([1.5, 2.5], {}, "token ids"),
        ({"input_ids": [[1, 2]], "attention_mask": [["a", "b"]]}, {}, "attention_mask must be int64"),
        ([], {}, "empty"),
        (None, padded(prompt(2), [0, 12]), "the prompt is empty: row 1 is nothing but padding"),
        (3, {}, "must be an int64 tensor"),
        ({"input_ids": None}, {}, "must be an int64 tensor"),
        ({"attention_mask": torch.ones(1, 3)}, {}, "must be an int64 tensor"),
    ],
)
def test_anything_else_is_refused_by_name(target, draft, inputs, spread, words):
    with pytest.raises(ConfigError, match=words):
        decode(target, draft, inputs, **spread)
