"""Draft models with a static cache: passes of few shapes, compiled once each, and the same trees as without."""

import pytest
import torch
from helpers.counting_backend import CountingBackend
from helpers.tiny import noisy_copy, padded, prompt, tiny_llama

import treespec
from treespec.errors import ConfigError, ContextFullError
from treespec.hf import make_draft_model, make_scorer
from treespec.hf.models.static_scorer import StaticScorer
from treespec.policies import BestFirst, Chain, KAry

OPTIONS = {"max_new_tokens": 24, "do_sample": False}


@pytest.fixture
def widths(draft):
    """The number of nodes of every pass of the draft model."""
    seen = []

    def record(module, args, call):
        seen.append(call["input_ids"].shape[1])

    handle = draft.register_forward_pre_hook(record, with_kwargs=True)
    yield seen
    handle.remove()


def run(target, drafter, inputs, tree, **options):
    speculation = treespec.TreeSpeculation(drafter, tree=tree, seed=3)
    out = target.generate(**inputs, **OPTIONS | options, custom_generate=speculation)
    stats = speculation.stats
    return out.tolist(), stats.num_draft_tokens, stats.num_accepted_tokens


@pytest.fixture
def inputs():
    return padded(prompt(2, 14), [0, 3])


@pytest.mark.parametrize(
    ("tree", "options"), [(Chain(4), {}), (KAry((3, 1, 1, 1)), {"do_sample": True}), (BestFirst(9), {})]
)
def test_static_passes_draft_the_same_trees(target, draft, widths, inputs, tree, options):
    expected = run(target, draft, inputs, tree, **options)
    drafter = make_draft_model(draft, static_cache_len=80)
    widths.clear()
    got = run(target, drafter, inputs, tree, **options)
    assert got == expected
    assert got[2] > 0
    assert widths[0] == 13, "the prompt"
    assert set(widths[1:]) <= {1, 2, 4, 8}


def test_a_compiled_model_is_compiled_once_per_shape():
    """Two shapes here, as every tree takes one pass over the root, with or without another token to catch up with."""
    torch.compiler.reset()
    target, backend = tiny_llama(num_layers=1), CountingBackend()
    draft = noisy_copy(target)
    drafter = make_draft_model(draft, static_cache_len=80, compile={"backend": backend, "fullgraph": True})
    tree = [(0,), (1,)]
    for ids in (prompt(1, 12), prompt(1, 9, seed=8), prompt(1, 12)):
        single = {"input_ids": ids}
        assert run(target, drafter, single, tree) == run(target, draft, single, tree)
        assert backend.num_graphs == 2
    torch.compiler.reset()


def test_the_static_cache_is_used_again(draft):
    scorer = make_scorer(draft, max_cache_len=40)
    caches = []
    for seed in range(2):
        scorer.prefill(prompt(2, 6, seed=seed), torch.ones(2, 6, dtype=torch.bool))
        caches.append(scorer.cache)
    assert caches[0] is caches[1]
    fresh = make_scorer(draft)
    fresh.prefill(prompt(2, 6, seed=1), torch.ones(2, 6, dtype=torch.bool))
    tokens, parents = prompt(2, 3), torch.tensor([[-1, 0, 0]]).repeat(2, 1)
    torch.testing.assert_close(scorer.extend(tokens, parents).logits, fresh.extend(tokens, parents).logits)
    scorer.prefill(prompt(3, 6), torch.ones(3, 6, dtype=torch.bool))
    assert scorer.cache is not caches[0], "of another number of rows"


def test_drafting_stops_when_the_static_cache_is_full(target, draft, inputs):
    plain = target.generate(**inputs, **OPTIONS).tolist()
    got = run(target, make_draft_model(draft, static_cache_len=24), inputs, 8)
    assert got[0] == plain
    assert 0 < got[1] < run(target, draft, inputs, 8)[1]


def test_wrong_options_are_refused(draft):
    with pytest.raises(ConfigError, match="needs static_cache_len"):
        make_draft_model(draft, compile=True)
    with pytest.raises(ConfigError, match="static_cache_len"):
        make_draft_model(draft, static_cache_len=0)
    scorer = StaticScorer(make_scorer(tiny_llama(), max_cache_len=9))
    scorer.prefill(prompt(1, 6), torch.ones(1, 6, dtype=torch.bool))
    with pytest.raises(ContextFullError, match="9 slots"):
        scorer.extend(prompt(1, 3), torch.tensor([[-1, 0, 1]]))
    scorer.extend(prompt(1, 2), torch.tensor([[-1, 0]]))
