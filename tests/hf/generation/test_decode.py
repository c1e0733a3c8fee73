"""Where a call may go wrong without an error: caches after exceptions, odd dtypes and heads, models without trees."""

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from helpers import zoo
from helpers.tiny import identical, lookups, prompt, tiny_llama
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import treespec
from treespec import BestFirst, Chain, KAry, SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.engine.loop import speculate
from treespec.errors import ConfigError
from treespec.hf.generation import speculation as speculation_module
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.recurrent import operators

OPTIONS = {"max_new_tokens": 16, "do_sample": False}


def filled_cache(model, ids):
    cache = DynamicCache()
    with torch.no_grad():
        model(ids, **{CACHE_NAME: cache})
    return cache


@pytest.mark.parametrize(("name", "tree"), [("lfm2", 16), ("mamba", Chain(4))], ids=["lfm2", "mamba"])
def test_models_without_trees_decode_with_every_tree(name, tree, monkeypatch):
    """By snapshots of their states, in chains or token by token."""
    monkeypatch.setattr(operators, "_is_known", lambda names: False)
    model = zoo.build(next(architecture for architecture in zoo.ARCHITECTURES if str(architecture) == name))
    ids = zoo.prompts(1, 24, seed=1)
    options = {**OPTIONS, "eos_token_id": None, "pad_token_id": 0}
    repeated = torch.cat([ids, model.generate(ids, **options)], dim=1)
    with pytest.warns(treespec.TreespecWarning, match=f"{name}.*decodes") as warned:
        identical(model, repeated, lookups(tree=tree), times=2, **options)
    assert len(warned) == 1
    identical(model, repeated, TreeSpeculation(SuffixLookup(), tree=tree), **options)


class CountedTree(BestFirst):
    num_updates = 0

    def update(self, step):
        self.num_updates += 1


@pytest.mark.parametrize("is_chain_only", [True, False])
def test_a_policy_that_the_target_cannot_verify_learns_nothing(is_chain_only, monkeypatch):
    """The call drafts chains instead, which the target of a direct `Run` gets cut out of trees."""
    made = []
    if is_chain_only:
        monkeypatch.setattr(operators, "_is_known", lambda names: False)
    monkeypatch.setattr(speculation_module, "speculate", lambda run: made.append(run) or speculate(run))
    model = zoo.build(next(architecture for architecture in zoo.ARCHITECTURES if str(architecture) == "lfm2"))
    policy = CountedTree(4)
    with pytest.warns(treespec.TreespecWarning, match="decodes") if is_chain_only else nullcontext():
        identical(model, zoo.prompts(1, 24, seed=1), lookups(tree=policy), **OPTIONS, pad_token_id=0)
    assert made[0].session.is_chain_only == is_chain_only
    assert (policy.num_updates == 0) == is_chain_only
    assert isinstance(made[0].session.policy, Chain) == is_chain_only


class Interrupt:
    """A criterion that raises after some tokens."""

    def __call__(self, input_ids, scores, **kwargs):
        if input_ids.shape[1] >= 20:
            raise KeyboardInterrupt
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def test_an_interrupted_call_leaves_the_callers_cache_usable(target, draft):
    ids = prompt()
    cache = filled_cache(target, ids[:, :6])
    speculation = TreeSpeculation(draft, tree=8)
    with pytest.raises(KeyboardInterrupt):
        target.generate(
            ids, **{CACHE_NAME: cache}, **OPTIONS, stopping_criteria=[Interrupt()], custom_generate=speculation
        )
    assert 11 <= cache.get_seq_length() < 20
    assert {type(layer) for layer in cache.layers} == {DynamicLayer}  # transformers' own again.
    known = target.generate(ids, **OPTIONS)
    turn = torch.cat([known, prompt(1, 4, seed=8)], dim=1)
    expected = target.generate(turn, **OPTIONS)
    assert torch.equal(target.generate(turn, **{CACHE_NAME: cache}, **OPTIONS, custom_generate=speculation), expected)


def test_a_batch_leaves_the_callers_cache_as_it_was(target, draft):
    ids = prompt(3)
    cache = filled_cache(target, ids[:, :6])
    before = deepcopy(cache)
    speculation = TreeSpeculation(draft, tree=8)
    options = {**OPTIONS, "eos_token_id": list(range(1, 12))}
    out = target.generate(ids, **{CACHE_NAME: cache}, **options, custom_generate=speculation)
    assert torch.equal(out, target.generate(ids, **options))
    assert cache.get_seq_length() == 6
    assert all(torch.equal(a.keys, b.keys) for a, b in zip(cache.layers, before.layers, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_processors_of_other_dtypes(target, draft, dtype):
    options = {"logits_processor": [lambda ids, scores: (2 * scores).to(dtype)]}
    for drafter in (draft, TokenRecycling()):
        identical(target, prompt(2), TreeSpeculation(drafter, tree=8, seed=0), **options)
    target.generate(prompt(2), **options, max_new_tokens=4, do_sample=True, custom_generate=TreeSpeculation(draft))


def test_heads_wider_than_the_configuration_says(draft):
    target = tiny_llama()
    wide = torch.nn.Linear(32, 72, bias=False)
    with torch.no_grad():
        wide.weight.zero_()
        wide.weight[:64] = target.lm_head.weight
    target.lm_head = wide
    identical(target, prompt(2), **OPTIONS)
    with pytest.raises(treespec.TreespecError, match="72"):
        target.generate(prompt(2), **OPTIONS, custom_generate=TreeSpeculation(draft))


def test_int32_ids(target, draft):
    ids = prompt(2)
    out = target.generate(ids.int(), **OPTIONS, custom_generate=TreeSpeculation(draft))
    assert torch.equal(out.long(), target.generate(ids, **OPTIONS))


def test_one_object_decodes_one_call_at_a_time(target, draft):
    speculation = TreeSpeculation(draft)

    def again(input_ids, scores, **kwargs):
        target.generate(input_ids, **OPTIONS, custom_generate=speculation)

    with pytest.raises(ConfigError, match="already"):
        target.generate(prompt(), **OPTIONS, stopping_criteria=[again], custom_generate=speculation)
    target.generate(prompt(), **OPTIONS, custom_generate=speculation)


def test_walks_and_dense_rules_sample_the_same_tokens(target, draft, monkeypatch):
    ids, options = prompt(4), {"max_new_tokens": 12, "do_sample": True, "top_k": 20, "repetition_penalty": 1.2}

    def run():
        tree = KAry((3, 1), children="mixed")
        speculation = TreeSpeculation(draft, tree=tree, verification="recursive", seed=3)
        return target.generate(ids, **options, custom_generate=speculation)

    dense = run()
    monkeypatch.setattr("treespec.verification.dispatch.DENSE_ON_CPU", 0)
    assert torch.equal(run(), dense)


@pytest.mark.parametrize("rule", ["optimal_transport", "transport_traversal"])
def test_transport_rules_with_distributions_of_few_tokens(target, draft, rule):
    """Slots that are never filled leave distribution rows that no node was drawn from: they decide nothing."""
    speculation = TreeSpeculation(draft, tree=KAry((2, 2), children="without_replacement"), verification=rule, seed=0)
    for options in ({"top_k": 20, "temperature": 0.2, "top_p": 0.9}, {"top_k": 1}):
        target.generate(prompt(2), max_new_tokens=12, do_sample=True, **options, custom_generate=speculation)


@pytest.mark.parametrize("rule", ["k_seq", "optimal_transport", "block", "token"])
def test_every_lossless_rule_serves_greedy_decoding(target, draft, rule):
    identical(target, prompt(2), TreeSpeculation(draft, tree=Chain(3), verification=rule), **OPTIONS)
