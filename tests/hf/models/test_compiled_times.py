"""`compile="auto"`: what was measured to be faster is taken and kept, and calls that cannot be compiled go without."""

import warnings
from functools import partial

import pytest
from helpers.tiny import prompt, tiny_llama
from transformers import DynamicCache, MambaConfig, MambaForCausalLM

import treespec
from treespec import SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.errors import TreespecWarning
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.models import compiled_target
from treespec.hf.models.compiled_target import compiled_scorer
from treespec.hf.models.static_scorer import StaticScorer
from treespec.policies import Control


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
    model = tiny_llama()
    ids, options = prompt(2), {"max_new_tokens": 10, "do_sample": False}
    plain = model.generate(ids, **options)
    for number in range(2):
        speculation = TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=6, compile="auto")
        for _ in range(2):
            assert model.generate(ids, **options, custom_generate=speculation).equal(plain)
            assert (speculation.options.compiled._scorer is not None) == is_faster
        assert set(timed) == {8}, "the width of trees of 6"
        assert len(timed) == (2 + 2 * compiled_target.NUM_ROUNDS), f"object {number} measures no more"
    auto = TreeSpeculation(SuffixLookup(), tree=Control(4, pass_ms={1: 9.0, 4: 9.1}), compile="auto")
    assert model.generate(ids, **options, custom_generate=auto).equal(plain)
    assert set(timed) == {8, 1, 2, 4}, "all that a control may choose"
    (kept,) = (tmp_path / "treespec" / "compiled").iterdir()
    kept.write_text("{}")
    with pytest.warns(TreespecWarning, match="ignored"):
        assert model.generate(ids, **options, custom_generate=speculation).equal(plain)


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
    mamba = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    warnings.simplefilter("ignore", TreespecWarning)  # pytest restores filters after the test.
    got = treespec.generate(mamba, ids, speculation, max_new_tokens=3)
    assert got.equal(mamba.generate(ids, max_new_tokens=3))
