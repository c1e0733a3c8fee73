"""What a user can get wrong in a call, and the error that each mistake gives: its type, and the words that help."""

import pytest
import torch
from helpers import checkpoints, dflash_files
from helpers.checkpoints import with_checkpoint
from helpers.tiny import noisy_copy, prompt, tiny_llama
from transformers import (
    DynamicCache,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    TextStreamer,
)

import treespec
from treespec import (
    KAry,
    SpeculativeDecoder,
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
    UnsupportedModelError,
    VocabularyMismatchError,
)
from treespec.heads import DFlash
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.loading.models import load_model
from treespec.tree import ROOT_PARENT
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


class Poison(LogitsProcessor):
    """A broken processor."""

    def __init__(self, value, everywhere=False):
        self.value, self.everywhere = value, everywhere

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, slice(None) if self.everywhere else 3] = self.value
        return scores


class BadDrafter:
    """Proposes the same tree for every row, whatever it is."""

    def __init__(self, **arrays):
        self.arrays = arrays

    def start(self, session):
        self.history = session.history

    def propose(self, max_depth):
        num_rows = self.history.num_rows
        arrays = {
            name: value if name == "draft_probs" else torch.as_tensor(value).repeat(num_rows, 1)
            for name, value in self.arrays.items()
        }
        arrays["tokens"][:, 0] = self.history.last_tokens
        return TreeBatch(**arrays)

    def update(self, step):
        pass

    def select_rows(self, rows):
        pass


def probs(**entries):
    row = torch.zeros(1, 64)
    for token, value in entries.items():
        row[0, int(token[1:])] = value
    return row


def sampled_tree(draft_row):
    return BadDrafter(tokens=[1, 2], parents=[-1, 0], draft_probs=draft_row, draft_index=[-1, 0])


def gpt2(num_positions):
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=num_positions, n_embd=32, n_layer=1, n_head=2, eos_token_id=None)
    ).eval()


def t5():
    return T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))


def with_mask(mask):
    return run(attention_mask=torch.tensor(mask).repeat(2, 1))


WRONG = {
    # prompts
    "empty prompt": (
        lambda: treespec.generate(TARGET, IDS[:, :0], TreeSpeculation(DRAFT)),
        ConfigError,
        "empty",
    ),
    "empty prompt inside the object": (lambda: call_directly(IDS[:, :0]), ConfigError, "empty"),
    "one-dimensional ids": (lambda: call_directly(IDS[0]), ConfigError, r"\[B, P\]"),
    "float ids": (lambda: call_directly(IDS.float()), ConfigError, "int64"),
    "id outside the vocabulary": (lambda: call_directly(IDS + 64), ConfigError, "outside the vocabulary"),
    "negative id": (lambda: call_directly(IDS - 70), ConfigError, "outside the vocabulary"),
    "right padding": (lambda: with_mask([1] * 11 + [0]), ConfigError, "left padding"),
    "hole in the mask": (lambda: with_mask([1] * 5 + [0] + [1] * 6), ConfigError, "holes"),
    "mask of another shape": (lambda: call_directly(attention_mask=torch.ones(2, 3)), ConfigError, "shape"),
    "odd positions": (lambda: run(position_ids=torch.arange(12).repeat(2, 1) * 2), UnsupportedModeError, "position"),
    # modes
    "beams": (lambda: run(num_beams=3), UnsupportedModeError, "num_beams"),
    "prompt lookup too": (lambda: run(prompt_lookup_num_tokens=3), UnsupportedModeError, "assisted"),
    "attentions": (lambda: run(output_attentions=True, return_dict_in_generate=True), UnsupportedModeError, "attent"),
    "quantised cache": (
        lambda: call_directly(cache_implementation="quantized"),
        UnsupportedModeError,
        "cache_implementation",
    ),
    "offloaded cache": (
        lambda: call_directly(cache_implementation="offloaded"),
        UnsupportedModeError,
        "cache_implementation",
    ),
    "guidance": (lambda: run(guidance_scale=1.5), UnsupportedModeError, "state between calls"),
    "streamer and a batch": (
        lambda: run(speculation=TreeSpeculation(DRAFT, streamer=Silent())),
        UnsupportedModeError,
        "one row",
    ),
    "cache longer than the prompt": (lambda: run(**{CACHE_NAME: filled_cache(30)}), TreespecError, "cache holds"),
    # logits
    "NaN logits": (lambda: run(logits_processor=[Poison(torch.nan)]), LogitsError, "NaN"),
    "infinite logits": (lambda: run(logits_processor=[Poison(torch.inf)]), LogitsError, "inf"),
    "NaN logits when sampling": (lambda: run(do_sample=True, logits_processor=[Poison(torch.nan)]), LogitsError, "NaN"),
    "no token left": (lambda: run(logits_processor=[Poison(-torch.inf, True)]), LogitsError, "logits"),
    # models
    "vocabularies that differ": (lambda: run(drafter=tiny_llama(vocab_size=60)), VocabularyMismatchError, "60"),
    "an encoder-decoder model": (lambda: run(drafter=t5()), UnsupportedModelError, "decoder"),
    "a full context": (lambda: run(prompt(1, 20), model=gpt2(16), drafter=TokenRecycling()), ContextFullError, "16"),
    # proposals and rules
    "a drafter's distribution of another sum": (
        lambda: run(drafter=sampled_tree(probs(t2=0.5)), do_sample=True),
        InvalidTreeError,
        "sum to one",
    ),
    "a drafter's token without mass": (
        lambda: run(drafter=sampled_tree(probs(t9=1.0)), do_sample=True),
        InvalidTreeError,
        "probability zero",
    ),
    "a chain rule on a tree": (
        lambda: run(speculation=TreeSpeculation(DRAFT, tree=KAry((2, 2)), verification="token"), do_sample=True),
        RuleMismatchError,
        "traversal",
    ),
    "an unknown rule": (lambda: TreeSpeculation(DRAFT, verification="best"), ConfigError, "target_walk"),
    "a rule's class": (lambda: TreeSpeculation(DRAFT, verification=Traversal), ConfigError, "rule"),
    "an empty list for a tree": (lambda: TreeSpeculation(DRAFT, tree=[]), InvalidTreeError, "no rank path"),
    # options
    "no model": (lambda: TreeScorer(None), ConfigError, "NoneType"),
    "a name for a model": (
        lambda: treespec.generate("gpt2", IDS, TreeSpeculation(DRAFT)),  # pyright: ignore[reportArgumentType]
        ConfigError,
        "from_pretrained",
    ),
    "a head of NaN": (lambda: run(drafter=DFlash(NAN_HEAD, (1, 2))), LogitsError, "head's distributions hold NaN"),
    "no drafter": (lambda: TreeSpeculation(None), ConfigError, "Drafter"),
    "an empty list of drafters": (lambda: TreeSpeculation([]), ConfigError, "Drafter"),
    "a drafter's class": (lambda: TreeSpeculation(TokenRecycling), ConfigError, "Drafter"),
    "a name for a drafter": (lambda: TreeSpeculation("gpt2"), ConfigError, "from_pretrained"),
    "a tree of the wrong kind": (lambda: TreeSpeculation(DRAFT, tree=2.5), ConfigError, "2.5"),
    "sampled children of a table": (
        lambda: run(drafter=TokenRecycling(), tree=KAry((2,), children="iid"), do_sample=True),
        ConfigError,
        "selected",
    ),
    "stop strings without a tokenizer": (lambda: TreeSpeculation(DRAFT, stop_strings="end"), ConfigError, "tokenizer"),
    "a seed out of range": (lambda: TreeSpeculation(DRAFT, seed=2**70), ConfigError, "seed"),
    "no stop string": (lambda: TreeSpeculation(DRAFT, stop_strings=[], tokenizer=object()), ConfigError, "several"),
    "a number for a stop string": (
        lambda: treespec.generate(TARGET, IDS[:1], TreeSpeculation(DRAFT), stop_strings=["a", 3], tokenizer=object()),
        ConfigError,
        "several",
    ),
    "a number for a streamer": (lambda: TreeSpeculation(DRAFT, streamer=3), ConfigError, "put"),
    "a number for the streamer of one call": (
        lambda: treespec.generate(TARGET, IDS[:1], TreeSpeculation(DRAFT), streamer=object()),
        ConfigError,
        "put",
    ),
    "a string for a seed": (lambda: TreeSpeculation(DRAFT, seed="7"), ConfigError, "seed"),
    # vLLM's words
    "an unknown method": (
        lambda: treespec.from_config({"method": "oracle", "num_speculative_tokens": 3}),
        ConfigError,
        "method",
    ),
    "an unknown key": (
        lambda: treespec.from_config({"method": "suffix", "num_speculative_tokens": 3, "modle": 1}),
        ConfigError,
        "modle",
    ),
    "no number of tokens": (lambda: treespec.from_config({"method": "suffix"}), ConfigError, "num_speculative_tokens"),
    "a tree of another size": (
        lambda: treespec.from_config(
            {"method": "suffix", "num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (1,)]"}
        ),
        ConfigError,
        "2 nodes",
    ),
    "no draft model": (
        lambda: treespec.from_config({"method": "draft_model", "num_speculative_tokens": 3}),
        ConfigError,
        "model",
    ),
    "no mapping": (lambda: treespec.from_config([1]), ConfigError, "mapping"),
    "a method that is not a string": (lambda: treespec.from_config({"method": [1]}), ConfigError, "method"),
    "a tree in addition to the configuration": (
        lambda: treespec.from_config({"method": "suffix", "num_speculative_tokens": 3}, tree=4),
        ConfigError,
        "speculative_token_tree",
    ),
    # checkpoints
    "no such folder": (lambda: load_draft("/no/such/folder"), CheckpointError, "/no/such/folder"),
    "a truncated file": (
        lambda: with_checkpoint(checkpoints.truncated, load_draft),
        CheckpointError,
        "cannot load .* incomplete",
    ),
    "a file of something else": (
        lambda: with_checkpoint(checkpoints.no_safetensors, load_draft),
        CheckpointError,
        "cannot load",
    ),
    "pickled weights": (
        lambda: with_checkpoint(checkpoints.pickled, load_draft),
        CheckpointError,
        "no file named model.safetensors .* pickled weights",
    ),
    "a tensor that is missing": (
        lambda: with_checkpoint(checkpoints.lacking_a_tensor, load_draft),
        CheckpointError,
        "lm_head.weight",
    ),
    "tensors of another size": (
        lambda: with_checkpoint(checkpoints.of_another_size, load_draft),
        CheckpointError,
        "mismatch",
    ),
    "a broken configuration": (
        lambda: with_checkpoint(checkpoints.without_configuration, load_draft),
        CheckpointError,
        "JSON",
    ),
    "a decoder without a tokenizer": (
        lambda: with_checkpoint(checkpoints.untouched, lambda folder: SpeculativeDecoder(folder, folder)),
        CheckpointError,
        "tokenizer",
    ),
    "a decoder of nothing": (lambda: SpeculativeDecoder("/no/draft", "/no/target"), CheckpointError, "/no/target"),
    "a decoder's chain of nothing": (lambda: SpeculativeDecoder("/no/draft", "/no/target", 0), ConfigError, "0"),
    "pickles on request": (
        lambda: load_model("/no/such/folder", use_safetensors=False),
        ConfigError,
        "pickled",
    ),
    "a model's folder for a head's": (
        lambda: with_checkpoint(checkpoints.untouched, lambda folder: load_drafter(folder, TARGET)),
        CheckpointError,
        "no draft head of the kinds that are read .*DFlash and DSpark, EAGLE, EAGLE-3, P-EAGLE",
    ),
}


def load_draft(folder):
    return treespec.from_config({"method": "draft_model", "model": folder, "num_speculative_tokens": 3})


class Silent(TextStreamer):
    """A streamer that says nothing."""

    def __init__(self):
        pass

    def put(self, value):
        pass

    def end(self):
        pass


def call_directly(ids=IDS, cache_implementation=None, **model_kwargs):
    """The object as a hand-written caller may call it, without `generate`'s own checks."""
    config = GenerationConfig(cache_implementation=cache_implementation)
    return TreeSpeculation(DRAFT)(TARGET, ids, [], [], config, **model_kwargs)


def filled_cache(length):
    cache = DynamicCache()
    TARGET(prompt(2, length), **{CACHE_NAME: cache})
    return cache


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_gets_a_clear_error(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert isinstance(caught.value, TreespecError)


def test_a_model_that_cannot_run_trees_says_what_it_does_instead(monkeypatch):
    monkeypatch.setattr("treespec.hf.models.capability._said", set())  # it is said once per process
    monkeypatch.setattr("treespec.hf.recurrent.operators._is_known", lambda names: False)
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4, use_mambapy=False)
    mamba = MambaForCausalLM(config).eval()
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = mamba.generate(prompt(1), **options)
    with pytest.warns(treespec.TreespecWarning, match="mamba"):
        out = mamba.generate(prompt(1), **options, custom_generate=TreeSpeculation(TokenRecycling()))
    assert torch.equal(out, plain)


def test_a_full_context_keeps_what_was_decoded():
    torch.manual_seed(0)
    model = gpt2(16)
    plain = model.generate(prompt(1, 12), max_new_tokens=5, do_sample=False, pad_token_id=0)
    with pytest.warns(treespec.TreespecWarning, match="16 positions"):
        out = run(prompt(1, 12), model=model, drafter=TokenRecycling(), max_new_tokens=40, pad_token_id=0)
    assert torch.equal(out, plain)


def test_roots_of_a_drafter_must_come_first():
    drafter = BadDrafter(tokens=[1, 2], parents=[0, ROOT_PARENT])
    with pytest.raises(TreespecError):
        run(drafter=drafter)
