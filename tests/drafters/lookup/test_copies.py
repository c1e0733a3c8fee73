"""Copies of drafters that have worked, by `deepcopy` and `pickle`, continue as the original does."""

import copy
import pickle

import pytest
import torch
from helpers.drafter_loop import Loop
from helpers.tiny import tiny_llama

from treespec import TreeSpeculation
from treespec.drafters import Merge, SuffixLookup, SuffixStore, TokenRecycling
from treespec.drafters.registry import DRAFTERS as REGISTERED
from treespec.policies import BestFirst

PROMPTS = [[1, 2, 3, 1, 2, 4, 1, 2], [5, 5, 0]]
STORED = [[1, 2, 3, 4, 5] * 4, [2, 0, 1]]


def sorted_store():
    store = SuffixStore(STORED)
    store.text.sort(store.max_match)
    return store


DRAFTERS = {
    **REGISTERED,
    "suffix with a store": lambda: SuffixLookup(store=SuffixStore(STORED)),
    "suffix with a sorted store": lambda: SuffixLookup(store=sorted_store()),
    "recycling, 3 candidates": lambda: TokenRecycling(num_candidates=3),
    "merge": lambda: Merge([SuffixLookup(store=sorted_store()), TokenRecycling(num_candidates=3)]),
}
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda drafter: pickle.loads(pickle.dumps(drafter))}


def work(drafter):
    """The trees of a call and what is emitted in it."""
    loop, seen = Loop(drafter, PROMPTS, BestFirst(8), is_sampling=False), []
    for step in range(4):
        batch = loop.propose()
        logits = torch.randn(*batch.tokens.shape, 6, generator=torch.Generator().manual_seed(step))
        seen.append((batch.tokens.tolist(), batch.parents.tolist(), batch.values.tolist(), loop.step(batch, logits)))
    return seen


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_continues_identically(name, how):
    drafter = DRAFTERS[name]()
    work(drafter)
    twin = COPIES[how](drafter)
    for _ in range(2):
        assert work(twin) == work(drafter)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_in_the_middle_of_a_call_proposes_the_same(how):
    drafter = SuffixLookup(store=sorted_store())
    loop = Loop(drafter, PROMPTS, BestFirst(8), is_sampling=False)
    loop.step(loop.propose(), emit=[[3, 1], [0, 5]])
    twin = COPIES[how](drafter)
    assert twin.propose(4).tokens.tolist() == drafter.propose(4).tokens.tolist()


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_speculation_continues_identically(how):
    model, prompt = tiny_llama(), torch.tensor([[5, 6, 7, 8, 5, 6]])
    speculation = TreeSpeculation([SuffixLookup(store=sorted_store()), TokenRecycling()], tree=8, seed=3)
    options = {"max_new_tokens": 12, "do_sample": True}
    model.generate(prompt, **options, custom_generate=speculation)
    twin = COPIES[how](speculation)
    for _ in range(2):
        outputs = [model.generate(prompt, **options, custom_generate=part) for part in (speculation, twin)]
        assert torch.equal(*outputs)
        assert twin.stats.num_accepted_at_depth == speculation.stats.num_accepted_at_depth
