"""A target whose passes run through torch.compile: the same tokens, few compilations, none as the text grows; by
`compile="auto"` where that was measured to be faster."""

import copy
import pickle
import warnings
from functools import partial

import pytest
import torch
from helpers.counting_backend import CountingBackend
from helpers.tiny import identical, noisy_copy, padded, prompt, tiny_llama
from transformers import DynamicCache, MambaConfig, MambaForCausalLM

import treespec
from treespec import SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.errors import ConfigError, TreespecWarning, UnsupportedModeError, UnsupportedModelError
from treespec.hf.introspect import CACHE_NAME, cache_in
from treespec.hf.models import compiled_target
from treespec.hf.models.compiled_target import CompiledTarget, compiled_scorer
from treespec.hf.models.static_scorer import StaticScorer
from treespec.policies import Control


def tiny_mamba():
    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()


@pytest.fixture
def backend():
    torch.compiler.reset()
    yield CountingBackend()
    torch.compiler.reset()


def test_texts_are_those_without_compilation_and_no_pass_is_compiled_as_they_grow(backend):
    """Trees of 8 nodes are passes of 1, 2, 4 or 8: four graphs at most, for calls of several lengths."""
    model = tiny_llama(num_layers=1)
    draft = noisy_copy(model)
    speculation = TreeSpeculation(draft, tree=8, compile={"backend": backend, "fullgraph": True}, seed=1)
    graphs = []
    for length, new_tokens in ((12, 60), (9, 40), (20, 100), (12, 60)):
        identical(model, prompt(1, length, seed=length), speculation, max_new_tokens=new_tokens)
        graphs.append(backend.num_graphs)
    assert speculation.total_stats.mean_acceptance_length > 1.5
    assert 1 <= graphs[0] <= 4
    assert graphs[-1] == graphs[-2] <= 4


def test_batches_states_and_sampling_are_those_without_compilation():
    model = tiny_llama()
    options = padded(prompt(3, 10), [0, 4, 0]) | {"max_new_tokens": 12, "output_hidden_states": True}
    for is_sampling in (False, True):
        results = [
            model.generate(
                **options,
                do_sample=is_sampling,
                return_dict_in_generate=True,
                custom_generate=TreeSpeculation(noisy_copy(model), tree=6, seed=3, compile=compile),
            )
            for compile in ({"backend": "eager"}, False)
        ]
        assert results[0].sequences.equal(results[1].sequences)
        assert cache_in(results[0]) is None
        for got, expected in zip(results[0].hidden_states[-1], results[1].hidden_states[-1], strict=True):
            torch.testing.assert_close(got, expected)


def test_the_cache_serves_later_calls_and_copies_compile_for_themselves(backend):
    model = tiny_llama(num_layers=1)
    speculation = TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=6, compile={"backend": "eager"})
    model.generate(prompt(1, 8), max_new_tokens=8, custom_generate=speculation)
    compiled, policy = speculation.options.compiled, speculation.options.policy
    first = compiled.scorer(model, 16, policy, ())
    assert first is compiled.scorer(model, 200, policy, ())
    assert first is not compiled.scorer(model, 2000, policy, ())
    for again in (copy.deepcopy(speculation), pickle.loads(pickle.dumps(speculation))):
        assert again.options.compiled.options == {"backend": "eager"}
        assert again.options.compiled is not compiled


def test_what_cannot_be_compiled_is_refused():
    model = tiny_llama(num_layers=1)
    with pytest.raises(ConfigError, match="compile must be True"):
        TreeSpeculation(TokenRecycling(), compile="max-autotune")
    assert CompiledTarget.of(False) is None
    speculation = TreeSpeculation(TokenRecycling(), tree=4, compile={"backend": "eager"})
    cache = DynamicCache()
    model(prompt(1, 5), **{CACHE_NAME: cache})
    with pytest.raises(UnsupportedModeError, match="static cache of its own"):
        treespec.generate(model, prompt(1, 6), speculation, **{CACHE_NAME: cache}, max_new_tokens=3)
    warnings.simplefilter("ignore", TreespecWarning)  # pytest restores filters after the test.
    with pytest.raises(UnsupportedModelError, match="compile= needs a static cache"):
        treespec.generate(tiny_mamba(), prompt(1, 6), speculation, max_new_tokens=3)


@pytest.mark.parametrize("is_faster", [True, False])
def test_auto_takes_what_was_measured_to_be_faster_and_keeps_it(is_faster, monkeypatch, tmp_path):
    """Passes are compiled by a backend that does nothing; a clock makes them twice as fast, or half."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_target, "compiled_scorer", partial(compiled_by, {"backend": "eager"}))
    timed = []

    def time_pass(scorer, count):
        timed.append(count)
        return 0.02 if isinstance(scorer, StaticScorer) == is_faster else 0.04

    monkeypatch.setattr(compiled_target, "time_pass", time_pass)
    model = tiny_llama(num_layers=1)
    ids = prompt(2)
    several = [TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=6, compile="auto") for _ in range(2)]
    for number, speculation in enumerate(several):
        for _ in range(2):
            identical(model, ids, speculation, max_new_tokens=10)
            assert (speculation.options.compiled._scorer is not None) == is_faster
        assert set(timed) == {8}, "the width of trees of 6"
        assert len(timed) == (2 + 2 * compiled_target.NUM_ROUNDS), f"object {number} measures no more"
    auto = TreeSpeculation(SuffixLookup(), tree=Control(4, pass_ms={1: 9.0, 4: 9.1}), compile="auto")
    identical(model, ids, auto, max_new_tokens=10)
    assert set(timed) == {8, 1, 2, 4}, "all that a control may choose"
    (kept,) = (tmp_path / "treespec" / "compiled").iterdir()
    kept.write_text("{}")
    with pytest.warns(TreespecWarning, match="ignored"):
        identical(model, ids, several[-1], max_new_tokens=10)


def compiled_by(options, model, num_slots, _, hidden_layers=()):
    return compiled_scorer(model, num_slots, options, hidden_layers)


def test_auto_goes_without_where_the_call_cannot_be_compiled(monkeypatch):
    monkeypatch.setattr(compiled_target, "time_pass", lambda *_: pytest.fail("nothing to measure"))
    model, cache = tiny_llama(num_layers=1), DynamicCache()
    speculation = TreeSpeculation(TokenRecycling(), tree=4, compile="auto")
    ids = prompt(1, 8)
    model(ids[:, :5], **{CACHE_NAME: cache})
    got = treespec.generate(model, ids, speculation, **{CACHE_NAME: cache}, max_new_tokens=3)
    assert got.equal(model.generate(ids, max_new_tokens=3))
    mamba = tiny_mamba()
    warnings.simplefilter("ignore", TreespecWarning)  # pytest restores filters after the test.
    got = treespec.generate(mamba, ids, speculation, max_new_tokens=3)
    assert got.equal(mamba.generate(ids, max_new_tokens=3))
