"""Small tokenizers that differ, trained in a moment on the licence's text."""

import json
from functools import cache
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()
LINES = [" ".join(line.split()) + "\n" for line in TEXT.splitlines() if line.strip()]
SPECIAL = ["<pad>", "<s>", "</s>"]


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    known = tokenizer.get_vocab()
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    given = {role: token for role, token in roles.items() if token in known}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **given)


@cache
def byte_level(size: int) -> PreTrainedTokenizerFast:
    """BPE over bytes, as GPT-2's: Ġ for a space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return wrap(tokenizer)


@cache
def sentence_piece(size: int = 300) -> PreTrainedTokenizerFast:
    """A unigram model with ▁ for a space, which it puts before every text; no token for a byte."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = [*SPECIAL, "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([line.strip() for line in LINES], trainer)
    return wrap(tokenizer)


@cache
def byte_fallback(size: int = 600) -> PreTrainedTokenizerFast:
    """BPE as Llama-2's: ▁ for a space, <0x0A> for a byte, <s> before every text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("▁[^▁]*"), "isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    known = [*SPECIAL, "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=size - 256, special_tokens=known, show_progress=False)
    tokenizer.train_from_iterator([line.strip() for line in LINES], trainer)
    # A trainer would make special tokens of the bytes: they are put in behind it, before the other tokens.
    state = json.loads(tokenizer.to_str())
    bytes_of = {f"<0x{byte:02X}>": len(known) + byte for byte in range(256)}
    trained = state["model"]["vocab"].items()
    vocabulary = {token: index + 256 * (index >= len(known)) for token, index in trained} | bytes_of
    state["model"]["vocab"] = vocabulary
    state["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [vocabulary["<s>"]], "tokens": ["<s>"]}},
    }
    return wrap(Tokenizer.from_str(json.dumps(state)))


@cache
def word_piece(size: int = 300) -> PreTrainedTokenizerFast:
    """BERT's kind: lower case, ## inside words, and what stands between them is lost."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = [*SPECIAL, "<unk>"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return wrap(tokenizer)


def characters(permutation: list[int] | None = None) -> PreTrainedTokenizerFast:
    """A token per printable ASCII character: every sequence of tokens is the only one for its text."""
    tokens = ["<pad>", "\n", *map(chr, range(32, 127))]
    order = permutation or list(range(len(tokens)))
    tokenizer = Tokenizer(models.BPE({token: order[i] for i, token in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.Fuse()
    return wrap(tokenizer)


def renumbered(tokenizer: PreTrainedTokenizerFast, permutation: list[int]) -> PreTrainedTokenizerFast:
    """The same byte-level BPE with `permutation[i]` for the id i."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    state["model"]["vocab"] = {token: permutation[i] for token, i in vocabulary.items()}
    for added in state["added_tokens"]:
        added["id"] = permutation[added["id"]]
    return wrap(Tokenizer.from_str(json.dumps(state)))


def permuted_copy(model, permutation: list[int], extra: int = 0):
    """The same model with `permutation[i]` for the token i, and `extra` logits that no token has."""
    config = type(model.config)(**{**model.config.to_dict(), "vocab_size": len(permutation) + extra})
    copy = type(model)(config).eval()
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        fresh = torch.full((len(permutation) + extra, state[name].shape[1]), 3.0)
        fresh[torch.tensor(permutation)] = state[name]
        state[name] = fresh
    copy.load_state_dict(state)
    return copy
