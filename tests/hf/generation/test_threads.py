"""One object for several threads, several objects for one model, and copies of objects that have decoded."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.dflash_files import dspark, random_head
from helpers.medusa_files import random_heads
from helpers.tiny import identical, noisy_copy, padded, prompt, tiny_llama

from treespec import SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.drafters import DraftModel
from treespec.heads import DFlash, Medusa
from treespec.hf import TreeScorer

OPTIONS = {"max_new_tokens": 12, "do_sample": False}
DRAFTERS = {
    "draft model": lambda: DraftModel(TreeScorer(noisy_copy(tiny_llama()))),
    "medusa": lambda: Medusa(random_heads(3)),
    "block": lambda: DFlash(random_head(dspark(hidden_layers=(0, 1))), (0, 1)),
    "lookups": lambda: [TokenRecycling(), SuffixLookup()],
}
COPIES = {"pickle": lambda part: pickle.loads(pickle.dumps(part)), "deepcopy": copy.deepcopy, "copy": copy.copy}


def at_once(calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(call) for call in calls]]


def test_calls_from_several_threads_take_turns(target):
    speculation = TreeSpeculation(DRAFTERS["draft model"](), tree=8)
    inputs = [padded(prompt(2, seed=seed), [0, seed]) for seed in range(4)]
    plain = [target.generate(**given, **OPTIONS) for given in inputs]
    calls = [lambda given=given: target.generate(**given, **OPTIONS, custom_generate=speculation) for given in inputs]
    for out, expected in zip(at_once(calls), plain, strict=True):
        assert torch.equal(out, expected)
    assert speculation.total_stats.num_emitted_tokens == 4 * 2 * OPTIONS["max_new_tokens"]


def test_objects_of_their_own_share_a_model(target):
    plain = target.generate(prompt(), **OPTIONS)
    objects = [TreeSpeculation(make(), tree=8) for make in DRAFTERS.values()]
    calls = [lambda part=part: target.generate(prompt(), **OPTIONS, custom_generate=part) for part in objects]
    assert all(torch.equal(out, plain) for out in at_once(calls))
    assert target.config._attn_implementation == "sdpa"


def test_a_model_in_training_mode_is_shared():
    trained = tiny_llama(attention_dropout=0.5)
    plain = trained.generate(prompt(), **OPTIONS)
    trained.train()
    objects = [TreeSpeculation(TokenRecycling(), tree=8) for _ in range(3)]
    calls = [lambda part=part: trained.generate(prompt(), **OPTIONS, custom_generate=part) for part in objects]
    assert all(torch.equal(out, plain) for out in at_once(calls))
    assert all(module.training for module in trained.modules())


@pytest.mark.parametrize(("drafter", "how"), [("draft model", "copy"), ("medusa", "pickle"), ("block", "deepcopy")])
def test_a_copy_of_an_object_that_has_decoded(target, drafter, how):
    options = {**OPTIONS, "prefix_allowed_tokens_fn": lambda row, ids: range(1, 60)}
    speculation = TreeSpeculation(DRAFTERS[drafter](), tree=8)
    target.generate(prompt(), **options, custom_generate=speculation)
    for part in (COPIES[how](speculation), speculation):
        identical(target, prompt(), part, **options)


def test_a_pickle_holds_no_target(target):
    speculation = TreeSpeculation(TokenRecycling(), tree=8)
    target.generate(prompt(), **OPTIONS, custom_generate=speculation)
    assert len(pickle.dumps(speculation)) < sum(weight.nbytes for weight in target.parameters()) / 4
