"""Users' mistakes in a call, and the error that each gives: its type, and the words that help."""

import pytest
import torch
from helpers import checkpoints, dflash_files
from helpers.checkpoints import with_checkpoint
from helpers.tiny import noisy_copy, prompt, tiny_llama
from transformers import DynamicCache, GenerationConfig, GPT2Config, GPT2LMHeadModel

import treespec
from treespec import (
    KAry,
    SpeculativeDecoder,
    SuffixLookup,
    TokenRecycling,
    TreeBatch,
    TreeScorer,
    TreeSpeculation,
    load_drafter,
)
from treespec.errors import (
    CheckpointError,
    ConfigError,
    ContextFullError,
    InvalidTreeError,
    LogitsError,
    RuleMismatchError,
    TreespecError,
    UnsupportedModeError,
)
from treespec.heads import DFlash
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.loading.models import load_model
from treespec.verification import Traversal

TARGET = tiny_llama()
DRAFT = noisy_copy(TARGET)
IDS = prompt(2)
NAN_HEAD = dflash_files.random_head(dflash_files.shape())
NAN_HEAD.lm_head.weight.data.fill_(torch.nan)


def run(ids=IDS, model=TARGET, drafter=DRAFT, tree=8, do_sample=False, max_new_tokens=4, speculation=None, **options):
    speculation = speculation or TreeSpeculation(drafter, tree=tree)
    return model.generate(
        ids, do_sample=do_sample, max_new_tokens=max_new_tokens, custom_generate=speculation, **options
    )


def poison(value, tokens=(3,)):
    """A broken processor."""
    return [lambda ids, scores: scores.index_fill(1, torch.tensor(tokens), value)]


class Misguided(SuffixLookup):
    """Proposes what `change` makes of its trees."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def propose(self, max_depth):
        return self.change(super().propose(max_depth))


def one_child(token, parents=(-1, 0), draft_probs=None):
    """A drafter whose roots have this child, whatever the text."""

    def change(trees):
        tokens = torch.cat([trees.tokens[:, :1], torch.full((trees.num_rows, 1), token)], 1)
        index = None if draft_probs is None else torch.tensor([[-1, 0]] * len(tokens))
        return TreeBatch(tokens, torch.tensor([parents] * len(tokens)), draft_probs, index)

    return Misguided(change)


def drawn_child(**probs):
    """Token 2, drawn from a distribution of these tokens."""
    row = torch.zeros(1, 64)
    for token, value in probs.items():
        row[0, int(token[1:])] = value
    return one_child(2, draft_probs=row)


def gpt2(num_positions):
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=num_positions, n_embd=32, n_layer=1, n_head=2, eos_token_id=None)
    ).eval()


def with_mask(mask):
    return run(attention_mask=torch.tensor(mask).repeat(2, 1))


WRONG = {
    ConfigError: {
        "empty prompt": (lambda: call_directly(IDS[:, :0]), "empty"),
        "one-dimensional ids": (lambda: call_directly(IDS[0]), r"\[B, P\]"),
        "float ids": (lambda: call_directly(IDS.float()), "int64"),
        "id outside the vocabulary": (lambda: call_directly(IDS + 64), "outside the vocabulary"),
        "negative id": (lambda: call_directly(IDS - 70), "outside the vocabulary"),
        "right padding": (lambda: with_mask([1] * 11 + [0]), "left padding"),
        "hole in the mask": (lambda: with_mask([1] * 5 + [0] + [1] * 6), "holes"),
        "mask of another shape": (lambda: call_directly(attention_mask=torch.ones(2, 3)), "shape"),
        "an unknown rule": (lambda: TreeSpeculation(DRAFT, verification="best"), "target_walk"),
        "a rule's class": (lambda: TreeSpeculation(DRAFT, verification=Traversal), "rule"),
        "no model": (lambda: TreeScorer(None), "NoneType"),
        "a name for a model": (lambda: treespec.generate("gpt2", IDS, TreeSpeculation(DRAFT)), "from_pretrained"),
        "no speculation": (lambda: treespec.generate(TARGET, IDS), "must be a TreeSpeculation, got NoneType"),
        "no drafter": (lambda: TreeSpeculation(None), "Drafter"),
        "an empty list of drafters": (lambda: TreeSpeculation([]), "Drafter"),
        "a drafter's class": (lambda: TreeSpeculation(TokenRecycling), "Drafter"),
        "a name for a drafter": (lambda: TreeSpeculation("gpt2"), "from_pretrained"),
        "a tree of the wrong kind": (lambda: TreeSpeculation(DRAFT, tree=2.5), "2.5"),
        "sampled children of a table": (
            lambda: run(drafter=TokenRecycling(), tree=KAry((2,), children="iid"), do_sample=True),
            "selected",
        ),
        "stop strings without a tokenizer": (lambda: TreeSpeculation(DRAFT, stop_strings="end"), "tokenizer"),
        "stop strings of a configuration without a tokenizer": (
            lambda: called(generation_config=GenerationConfig(stop_strings=["x"])),
            "tokenizer",
        ),
        "a seed out of range": (lambda: TreeSpeculation(DRAFT, seed=2**70), "seed"),
        "a number for a stop string": (lambda: called(stop_strings=["a", 3], tokenizer=object()), "several"),
        "a number for the streamer of one call": (lambda: called(streamer=object()), "put"),
        "no list of observers": (lambda: TreeSpeculation(DRAFT, observers=treespec.Observer()), "must be a list of"),
        "no observers": (lambda: TreeSpeculation(DRAFT, observers=["a bar"]), "must be a list of Observer objects"),
        "an unknown method": (lambda: configured("oracle"), "method"),
        "an unknown key": (lambda: configured("suffix", modle=1), "modle"),
        "no number of tokens": (lambda: treespec.from_config({"method": "suffix"}), "num_speculative_tokens"),
        "a tree of another size": (lambda: configured("suffix", speculative_token_tree="[(0,), (1,)]"), "2 nodes"),
        "no draft model": (lambda: configured("draft_model"), "model"),
        "no mapping": (lambda: treespec.from_config([1]), "mapping"),
        "a method that is not a string": (lambda: treespec.from_config({"method": [1]}), "method"),
        "a tree in addition to the configuration": (
            lambda: treespec.from_config({"method": "suffix", "num_speculative_tokens": 3}, tree=4),
            "speculative_token_tree",
        ),
        "a decoder's chain of nothing": (lambda: SpeculativeDecoder("/no/draft", "/no/target", 0), "0"),
        "pickles on request": (lambda: load_model("/no/such/folder", use_safetensors=False), "pickled"),
    },
    UnsupportedModeError: {
        "odd positions": (lambda: run(position_ids=torch.arange(12).repeat(2, 1) * 2), "position"),
        "quantised cache": (lambda: call_directly(cache_implementation="quantized"), "cache_implementation"),
    },
    TreespecError: {"cache longer than the prompt": (lambda: run(**{CACHE_NAME: filled_cache(30)}), "cache holds")},
    LogitsError: {
        "NaN logits": (lambda: run(logits_processor=poison(torch.nan)), "NaN"),
        "infinite logits": (lambda: run(logits_processor=poison(torch.inf)), "inf"),
        "NaN logits when sampling": (lambda: run(do_sample=True, logits_processor=poison(torch.nan)), "NaN"),
        "no token left": (lambda: run(logits_processor=poison(-torch.inf, range(64))), "logits"),
        "a processor of another shape": (lambda: run(logits_processor=[lambda ids, scores: scores[:, 1:]]), "shape"),
        "a head of NaN": (lambda: run(drafter=DFlash(NAN_HEAD, (1, 2))), "head's distributions hold NaN"),
    },
    ContextFullError: {"a full context": (lambda: run(prompt(1, 20), model=gpt2(16), drafter=TokenRecycling()), "16")},
    InvalidTreeError: {
        "a drafter's distribution of another sum": (
            lambda: run(drafter=drawn_child(t2=0.5), do_sample=True),
            "sum to one",
        ),
        "a drafter's token without mass": (
            lambda: run(drafter=drawn_child(t9=1.0), do_sample=True),
            "probability zero",
        ),
        "an empty list for a tree": (lambda: TreeSpeculation(DRAFT, tree=[]), "no rank path"),
        "a root that is not the text's last token": (
            lambda: run(drafter=Misguided(lambda trees: TreeBatch(trees.tokens + 1, trees.parents))),
            "roots",
        ),
        "a drafter's token beyond the vocabulary": (lambda: run(drafter=one_child(99)), "vocabulary"),
        "a drafter of nothing": (lambda: run(drafter=Misguided(lambda trees: None)), "NoneType"),
        "a drafter of too few rows": (
            lambda: run(drafter=Misguided(lambda trees: TreeBatch(trees.tokens[:1], trees.parents[:1]))),
            "2 trees",
        ),
    },
    RuleMismatchError: {
        "a chain rule on a tree": (
            lambda: run(speculation=TreeSpeculation(DRAFT, tree=KAry((2, 2)), verification="token"), do_sample=True),
            "traversal",
        )
    },
    CheckpointError: {
        "no such folder": (lambda: load_draft("/no/such/folder"), "/no/such/folder"),
        "a truncated file": (lambda: with_checkpoint(checkpoints.truncated, load_draft), "cannot load .* incomplete"),
        "a file of something else": (lambda: with_checkpoint(checkpoints.no_safetensors, load_draft), "cannot load"),
        "pickled weights": (
            lambda: with_checkpoint(checkpoints.pickled, load_draft),
            "no file named model.safetensors .* pickled weights",
        ),
        "a tensor that is missing": (
            lambda: with_checkpoint(checkpoints.lacking_a_tensor, load_draft),
            "lm_head.weight",
        ),
        "tensors of another size": (lambda: with_checkpoint(checkpoints.of_another_size, load_draft), "mismatch"),
        "a broken configuration": (lambda: with_checkpoint(checkpoints.without_configuration, load_draft), "JSON"),
        "a decoder without a tokenizer": (
            lambda: with_checkpoint(checkpoints.untouched, lambda folder: SpeculativeDecoder(folder, folder)),
            "tokenizer",
        ),
        "a decoder of nothing": (lambda: SpeculativeDecoder("/no/draft", "/no/target"), "/no/target"),
        "a model's folder for a head's": (
            lambda: with_checkpoint(checkpoints.untouched, lambda folder: load_drafter(folder, TARGET)),
            "no draft head of the kinds that are read .*DFlash and DSpark, EAGLE, EAGLE-3, P-EAGLE",
        ),
    },
}


def configured(method, **config):
    return treespec.from_config({"method": method, "num_speculative_tokens": 3} | config)


def load_draft(folder):
    return configured("draft_model", model=folder)


def called(**options):
    return treespec.generate(TARGET, IDS[:1], TreeSpeculation(DRAFT), **options)


def call_directly(ids=IDS, cache_implementation=None, **model_kwargs):
    """The object as a hand-written caller may call it, without `generate`'s own checks."""
    config = GenerationConfig(cache_implementation=cache_implementation)
    return TreeSpeculation(DRAFT)(TARGET, ids, [], [], config, **model_kwargs)


def filled_cache(length):
    cache = DynamicCache()
    TARGET(prompt(2, length), **{CACHE_NAME: cache})
    return cache


@pytest.mark.parametrize(("error", "name"), [(error, name) for error, calls in WRONG.items() for name in calls])
def test_wrong_input_gets_a_clear_error(error, name):
    call, words = WRONG[error][name]
    assert issubclass(error, TreespecError)
    with pytest.raises(error, match=words):
        call()


def test_a_full_context_keeps_what_was_decoded():
    torch.manual_seed(0)
    model = gpt2(16)
    plain = model.generate(prompt(1, 12), max_new_tokens=5, do_sample=False, pad_token_id=0)
    with pytest.warns(treespec.TreespecWarning, match="16 positions"):
        out = run(prompt(1, 12), model=model, drafter=TokenRecycling(), max_new_tokens=40, pad_token_id=0)
    assert torch.equal(out, plain)


def test_roots_of_a_drafter_must_come_first():
    with pytest.raises(TreespecError):
        run(drafter=one_child(2, parents=(0, -1)))
