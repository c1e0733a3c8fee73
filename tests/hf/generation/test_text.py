"""Features that need a tokenizer: stop strings, the folder form, streams of text, and the two-model class."""

import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny import prompt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TextIteratorStreamer

import treespec
from treespec.errors import ConfigError

HUB = Path(__file__).parents[3] / "hub"
OPTIONS = {"max_new_tokens": 24, "do_sample": False}


@pytest.fixture(scope="module")
def tokenizer():
    """Every id is a token of its own: "<pad>", then syllables; "abcdef" is what `StopStringCriteria` probes with."""
    syllables = [a + b for a in "bdgklmnprst" for b in "aeiou"] + [*"bdfghkl", "abcdef"]
    vocabulary = {"<pad>": 0} | {syllable: i + 1 for i, syllable in enumerate(syllables)}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>")


def test_stop_strings_stop_where_plain_generate_stops(target, draft, tokenizer):
    """Characters across two tokens in the middle of the continuation: "ta" + "ki" stops at "ak"."""
    ids = prompt(1)
    first, second = tokenizer.convert_ids_to_tokens(target.generate(ids, **OPTIONS)[0, 20:22].tolist())
    stop = first[-1] + second[0]
    plain = target.generate(ids, **OPTIONS, stop_strings=[stop], tokenizer=tokenizer)
    assert plain.shape[1] < ids.shape[1] + 24
    speculation = treespec.TreeSpeculation(draft, tree=8, tokenizer=tokenizer, stop_strings=[stop])
    assert torch.equal(target.generate(ids, **OPTIONS, custom_generate=speculation), plain)
    for given in (stop, [stop]):
        bare = treespec.TreeSpeculation(draft, tree=8)
        out = treespec.generate(target, ids, bare, tokenizer=tokenizer, stop_strings=given, **OPTIONS)
        assert torch.equal(out, plain)


def test_the_folder_form_through_generate(target, draft, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = shutil.copytree(HUB, tmp_path / "hub")
    (folder / "custom_generate" / "requirements.txt").write_text("torch\n")
    ids = prompt(2)
    plain = target.generate(ids, **OPTIONS)
    options = {**OPTIONS, "custom_generate": str(folder), "trust_remote_code": True}
    assert torch.equal(target.generate(ids, **options), plain)
    assert torch.equal(target.generate(ids, **options, assistant_model=draft, tree=8), plain)
    tokenizers = {"tokenizer": tokenizer, "assistant_tokenizer": tokenizer}
    assert torch.equal(target.generate(ids, **options, assistant_model=draft, **tokenizers), plain)
    streamer = TextIteratorStreamer(tokenizer, timeout=20)
    target.generate(ids[:1], **options, assistant_model=draft, streamer=streamer)
    assert "".join(streamer) == tokenizer.decode(target.generate(ids[:1], **OPTIONS)[0])


def test_the_two_model_class(target, draft, tokenizer, tmp_path):
    for name, model in {"target": target, "draft": draft}.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    decoder = treespec.SpeculativeDecoder(str(tmp_path / "draft"), str(tmp_path / "target"), num_speculative_tokens=3)
    text = "ba de gi ko lu"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    plain = target.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
    assert decoder.generate(text, max_tokens=20, temperature=0) == tokenizer.decode(plain, skip_special_tokens=True)
    assert decoder.speculation.stats.num_accepted_tokens > 0
    sampled = decoder.generate(text, max_tokens=20, seed=1)
    assert sampled == decoder.generate(text, max_tokens=20, seed=1) != decoder.generate(text, max_tokens=20, seed=2)
    eos = plain[7].item()
    decoder.target_model.generation_config.eos_token_id = eos
    stopped = decoder.generate(text, max_tokens=20, temperature=0)
    first = plain.tolist().index(eos)
    assert stopped == tokenizer.decode(plain[: first + 1], skip_special_tokens=True)
    wrong = [("max_tokens", 0), *(("seed", value) for value in (-3, 2**63, "7", True))]
    for name, value in wrong + [("temperature", value) for value in (-1.0, float("nan"), float("inf"))]:
        with pytest.raises(ConfigError, match=name):
            decoder.generate(text, **{name: value})
