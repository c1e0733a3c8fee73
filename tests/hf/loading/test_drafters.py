"""Draft models with another tokenizer, through `generate`: the output is the target's, and the maps are right."""

import pytest
import torch
from helpers.doc_snippets import run_snippet
from helpers.text_tokenizers import (
    TEXT,
    byte_fallback,
    byte_level,
    characters,
    permuted_copy,
    renumbered,
    sentence_piece,
    word_piece,
)
from helpers.tiny import identical, noisy_copy, tiny_llama
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import treespec
from treespec.drafters.model.token_map import shared_tokens, spell
from treespec.errors import CheckpointError, ConfigError, TreespecWarning, VocabularyMismatchError
from treespec.hf import make_draft_model
from treespec.hf.loading.tokenizers import Spelling

TOKENIZERS = {
    "bytes 300": lambda: byte_level(300),
    "bytes 500": lambda: byte_level(500),
    "sentencepiece": sentence_piece,
    "byte fallback": byte_fallback,
    "wordpiece": word_piece,
    "characters": characters,
}
PAIRS = list(zip(TOKENIZERS, [*TOKENIZERS][1:] + [*TOKENIZERS][:1], ["intersection", "re-encoding"] * 3, strict=True))
"""A target and a draft model of every tokenizer."""
PROMPTS = ["Subject to the terms and conditions of this License", "the Work"]


@pytest.fixture(scope="module")
def llamas():
    """A model for every tokenizer, its head padded by three logits."""
    return {name: tiny_llama(len(make().get_vocab()) + 3, seed=i) for i, (name, make) in enumerate(TOKENIZERS.items())}


@pytest.mark.parametrize(("target", "draft", "method"), PAIRS, ids=lambda name: name.replace(" ", "-"))
def test_greedy_equals_plain(llamas, target, draft, method):
    tokenizer, own = TOKENIZERS[target](), TOKENIZERS[draft]()
    inputs = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    drafter = make_draft_model(llamas[draft], tokenizer=own, target_tokenizer=tokenizer, method=method)
    speculation = treespec.TreeSpeculation(drafter, tree=8)
    assert identical(llamas[target], inputs, speculation).num_draft_tokens > 0


def shuffled(size: int) -> list[int]:
    return torch.randperm(size, generator=torch.Generator().manual_seed(7)).tolist()


def runs(target, drafter, inputs, **options):
    """Output and acceptance of a call."""
    speculation = treespec.TreeSpeculation(drafter, tree=10, seed=5)
    out = target.generate(**inputs, max_new_tokens=24, custom_generate=speculation, **options)
    return out.tolist(), speculation.stats.num_accepted_tokens, speculation.stats.num_draft_tokens


SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 40, "repetition_penalty": 1.1}


@pytest.mark.parametrize("options", [{"do_sample": False}, SAMPLED], ids=["greedy", "sampled"])
def test_the_same_model_in_other_tokens_drafts_the_same(options):
    """Ids shuffled, head padded: a wrong map anywhere would cost acceptance, and other draws."""
    tokenizer = byte_level(300)
    permutation = shuffled(300)
    target = tiny_llama(300)
    draft = noisy_copy(target, noise=0.02)
    other = permuted_copy(draft, permutation, extra=20)
    inputs = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    mapped = make_draft_model(other, tokenizer=renumbered(tokenizer, permutation), target_tokenizer=tokenizer)
    expected = runs(target, draft, inputs, **options)
    assert runs(target, mapped, inputs, **options) == expected
    mistaken = make_draft_model(other, is_same_tokenizer=True)
    assert runs(target, mistaken, inputs, **options)[1] < expected[1] / 4, "a wrong map must show"


def in_other_marks(tokenizer):
    """The byte-level tokenizer's tokens as SentencePiece would write them."""
    vocabulary = {}
    for token, piece in enumerate(Spelling(tokenizer).pieces):
        try:
            name = piece if isinstance(piece, str) else piece.decode().replace(" ", "▁")
        except UnicodeDecodeError:
            name = f"<0x{(piece or b'')[0]:02X}>"
        vocabulary[name] = token
    same = Tokenizer(models.BPE(vocabulary, []))
    same.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    same.add_special_tokens(["<pad>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=same, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def test_re_encoding_of_the_same_model_drafts_the_same():
    """A token per character: text and tokens are one, so nothing may be lost on the way through the text."""
    tokenizer = characters()
    size = len(tokenizer.get_vocab())
    permutation = shuffled(size)
    target = tiny_llama(size)
    with torch.no_grad():
        target.lm_head.weight[0] = 0.0  # <pad>, which is not text, is never among the best.
    draft = noisy_copy(target, noise=0.02)
    other = permuted_copy(draft, permutation)
    inputs = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    mapped = make_draft_model(
        other, tokenizer=characters(permutation), target_tokenizer=tokenizer, method="re-encoding"
    )
    expected = runs(target, draft, inputs, do_sample=False)
    got = runs(target, mapped, inputs, do_sample=False)
    assert got[0] == expected[0]
    assert got[1] == pytest.approx(expected[1], rel=0.05)
    mistaken = make_draft_model(other, is_same_tokenizer=True)
    assert runs(target, mistaken, inputs, do_sample=False)[1] < expected[1] / 4, "a wrong map must show"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_text_is_spelled_back(name):
    codec = Spelling(TOKENIZERS[name]())
    samples = [TEXT[i : i + 61] for i in range(0, 4000, 97)]
    if name in ("wordpiece", "sentencepiece"):  # Line breaks and upper case are not in these.
        samples = [" " + " ".join(text.lower().split()) for text in samples if text.replace(" ", "").isalpha()]
    for text in samples:
        assert spell(codec, codec.encode(text.encode())) == text.encode()
    if name in ("bytes 300", "byte fallback"):  # They keep bytes that are not text, too.
        for text in (b"\xe6\x97", b"the \xa5 Work", "日本".encode()[:5] + b"x"):
            assert spell(codec, codec.encode(text)) == text


def test_texts_are_cut_as_the_tokenizer_cuts_them():
    for make, marker in ((byte_level, "Ġ"), (sentence_piece, "▁"), (byte_fallback, "▁")):
        tokenizer = make(600) if make is byte_fallback else make(400)
        codec = Spelling(tokenizer)
        assert tokenizer.convert_ids_to_tokens(codec.encode(b" of the"))[0] == f"{marker}of"
        inside = tokenizer.convert_ids_to_tokens(codec.encode(b"ense of"))
        assert not inside[0].startswith(marker), "no space is put before a text that goes on"


def test_a_beginning_is_the_draft_models_own():
    assert Spelling(byte_fallback()).start_ids == [1]
    assert Spelling(byte_level(300)).start_ids == []
    assert Spelling(byte_level(300)).roles == {"bos": 1, "eos": 2}


def test_space_and_byte_marks_of_two_kinds_match():
    tokenizer = byte_level(500)
    other = Spelling(in_other_marks(tokenizer))
    assert shared_tokens(Spelling(tokenizer), other).tolist() == list(range(500))


def test_an_end_is_drafted_under_another_name():
    target, draft = byte_level(300), renumbered(byte_level(300), shuffled(300))
    draft.add_special_tokens({"eos_token": "<|end|>"})
    ids = shared_tokens(Spelling(target), Spelling(draft))
    assert ids[target.eos_token_id] == shuffled(300)[target.eos_token_id], "the name goes before the role"
    assert int((ids == draft.eos_token_id).sum()) == 0


def test_padded_heads_of_one_tokenizer():
    target = tiny_llama(300)
    draft = noisy_copy(target, noise=0.02)
    longer = permuted_copy(draft, list(range(300)), extra=84)
    inputs = byte_level(300)(PROMPTS, padding=True, return_tensors="pt")
    with pytest.raises(VocabularyMismatchError, match="384 tokens and the target's 300"):
        runs(target, longer, inputs, do_sample=False)
    expected = runs(target, draft, inputs, **SAMPLED)
    assert runs(target, make_draft_model(longer, is_same_tokenizer=True), inputs, **SAMPLED) == expected
    shorter = noisy_copy(tiny_llama(290))
    out = runs(target, make_draft_model(shorter, is_same_tokenizer=True), inputs, do_sample=False)[0]
    assert out == target.generate(**inputs, max_new_tokens=24, do_sample=False).tolist()


def test_wrong_options_are_refused():
    model, tokenizer = tiny_llama(300), byte_level(300)
    both = {"tokenizer": tokenizer, "target_tokenizer": tokenizer}
    for options, message in (
        ({"tokenizer": tokenizer}, "come together"),
        ({"target_tokenizer": tokenizer}, "come together"),
        ({"method": "re-encoding"}, "needs tokenizer="),
        ({**both, "method": "text"}, "method must be"),
        ({**both, "is_same_tokenizer": True}, "needs no tokenizers"),
        ({"tokenizer": "gpt2", "target_tokenizer": tokenizer}, "expected a transformers tokenizer"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_draft_model(model, **options)
    with pytest.raises(ConfigError, match="transformers model"):
        make_draft_model("gpt2")


def test_little_in_common_is_said_and_nothing_is_refused():
    model = tiny_llama(300)
    greek = [chr(0x3B1 + i) for i in range(24)]
    small = wrap_characters([*greek, *"abc"])
    other = wrap_characters([chr(0x410 + i) for i in range(64)])
    with pytest.raises(ConfigError, match="share no token"):
        make_draft_model(model, tokenizer=small, target_tokenizer=other)
    mixed = wrap_characters([*(chr(0x410 + i) for i in range(64)), *"ab"])
    with pytest.warns(TreespecWarning, match=r"share 2 tokens, 7\.4% of the smaller"):
        make_draft_model(model, tokenizer=small, target_tokenizer=mixed)


def wrap_characters(tokens):
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_from_config_takes_both_tokenizers(tmp_path):
    target, draft = tiny_llama(300), tiny_llama(500, seed=1)
    byte_level(500).save_pretrained(tmp_path)
    draft.save_pretrained(tmp_path)
    config = {
        "method": "draft_model",
        "model": str(tmp_path),
        "num_speculative_tokens": 3,
        "tokenizer": byte_level(300),
        "assistant_tokenizer": str(tmp_path),
    }
    inputs = byte_level(300)(PROMPTS, padding=True, return_tensors="pt")
    identical(target, inputs, treespec.from_config(config))
    with pytest.raises(ConfigError, match="come together"):
        treespec.from_config({**config, "tokenizer": None})
    with pytest.raises(CheckpointError, match="tokenizer"):
        treespec.from_config({**config, "assistant_tokenizer": str(tmp_path / "none")})


def test_the_documented_snippet_runs(capsys):
    run_snippet("A draft model")
    assert float(capsys.readouterr().out.split()[-1]) >= 1  # The page's opening prints too.
