"""The self-check finds what a model scores rightly, says a fallback once, and leaves no trace in the model."""

import gc
import weakref
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from helpers.rounds import NAMES, PLANTED, RAGGED_LENGTHS, Game, plant_mask
from helpers.zoo import build
from torch import nn

from treespec.errors import LogitsError, TreespecWarning, UnsupportedModelError
from treespec.hf import TreeScorer, make_scorer
from treespec.hf.attention.mask import TreeAttention
from treespec.hf.introspect import model_facts
from treespec.hf.models import selfcheck
from treespec.hf.models.capability import Detection
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.hf.models.selfcheck import LARGEST_TOLERANCE, LEAST_TOLERANCE, root_tolerance, self_check, tolerance_of
from treespec.protocols import Capability

MODES = (Capability.TREE, Capability.CHAIN)


def check(model, is_static=False):
    return self_check(model, [(mode, partial(TreeScorer, model, capability=mode)) for mode in MODES], is_static)


@pytest.mark.parametrize("name", NAMES)
def test_attention_models_score_trees_from_static_caches(name, monkeypatch):
    """From growing ones: test_make_scorer.py."""
    monkeypatch.setattr(selfcheck, "tolerance_of", lambda *args: tolerance_of(*args) / 5)  # With room to spare.
    result = check(build(name), is_static=True)
    assert result.capability == Capability.TREE
    assert result.tolerance < 2e-4, "float32 is compared strictly"
    assert result.reason == ""


@pytest.mark.parametrize(
    ("dtype", "attention"),
    [(torch.float64, "eager"), (torch.float16, "sdpa"), (torch.bfloat16, "sdpa"), (torch.bfloat16, "eager")],
    ids=str,
)
@pytest.mark.parametrize("name", ["gemma3_text", "gpt2"])
def test_other_dtypes_score_trees(name, dtype, attention):
    result = check(build(name, attention).to(dtype))
    assert result.capability == Capability.TREE
    assert result.tolerance <= LARGEST_TOLERANCE


RAGGED_ONLY = ("holes forgotten", "window by slot")
"""In one row without holes the slots of committed tokens are their positions."""
IN_CHAINS_TOO = ("folded mask in the wrong order",)
BUGS = {bug: found for bug, found in PLANTED.items() if bug not in (*RAGGED_ONLY, *IN_CHAINS_TOO)}
NAN = "llama", plant_mask(lambda chain, right: (torch.full(right.mask.shape, torch.nan), right.position_ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "plant"), [*BUGS.values(), NAN], ids=[*BUGS, "NaN"])
def test_wrong_trees_are_found_in_every_dtype(name, plant, dtype, monkeypatch):
    """The tolerance is largest in bfloat16."""
    plant(monkeypatch)
    result = check(build(name).to(dtype))
    assert result.capability == Capability.CHAIN
    assert "tree " in result.reason


def fail(chain, right):
    raise RuntimeError("mask shapes differ\nand a very long explanation")


def test_models_that_fail_decode_otherwise_and_say_why(monkeypatch):
    plant_mask(fail)(monkeypatch)
    model = build("llama")
    with pytest.warns(
        TreespecWarning, match=r"llama.* by chains because tree passes fail: mask shapes differ$"
    ) as said:
        scorer = make_scorer(model)
    assert len(said) == 1
    assert scorer.capability == Capability.CHAIN
    assert Game(model, scorer, RAGGED_LENGTHS).play(2) <= 1e-4
    make_scorer(model)  # says nothing more: a second warning would be an error here


@pytest.mark.parametrize("least_nodes", [2, 1], ids=["chains", "single tokens"])
def test_models_whose_chains_are_wrong_decode_plainly_or_are_refused(monkeypatch, least_nodes):
    """A fault in passes over several new nodes, or in all passes over new nodes."""
    PLANTED["siblings seen"][1](monkeypatch)
    prepared, model = TreeScorer._prepared, build("llama")

    def without_positions(self, tokens, attention, is_prefill=False):
        is_right = is_prefill or tokens.shape[1] < least_nodes
        shifted = TreeAttention(attention.mask, attention.position_ids // 2)
        return prepared(self, tokens, attention if is_right else shifted, is_prefill)

    monkeypatch.setattr(TreeScorer, "_prepared", without_positions)
    if least_nodes == 1:
        with pytest.raises(UnsupportedModelError, match="decodes wrongly from a transformers cache: plain logits diff"):
            make_scorer(model)
        return
    with pytest.warns(TreespecWarning, match="one token at a time because tree logits differ.*; chain logits differ"):
        assert make_scorer(model).capability == Capability.PLAIN


def test_attention_without_masks_verifies_chains(monkeypatch):
    """Flash attention takes no mask; here its name stands for sdpa's own function, which then gets 2-D masks only."""
    monkeypatch.setattr("treespec.hf.attention.mask.MASK_IMPLEMENTATIONS", ("eager",))
    result = check(build("llama"))
    assert result.capability == Capability.CHAIN
    assert "'sdpa' takes no tree mask" in result.reason


@pytest.mark.parametrize(
    ("name", "message"),
    [("bloom", "counts slots"), ("gpt_neo", "counts slots"), ("lfm2", "keeps a state")],
)
@pytest.mark.filterwarnings("ignore::treespec.errors.TreespecWarning")
def test_models_that_cannot_use_static_caches_are_refused(name, message):
    model = build(name)
    with pytest.raises(UnsupportedModelError, match=message):
        make_scorer(model, max_cache_len=64)
    assert make_scorer(model).capability >= Capability.CHAIN


def test_temperatures_and_static_caches_go_together():
    model = build("llama4_text")
    assert Game(model, make_scorer(model, max_cache_len=128), [RAGGED_LENGTHS[0]]).play(4, max_nodes=4) <= 1e-4


def test_recurrent_models_that_fail_get_snapshots(monkeypatch):
    """The planted bug: a tree pass that takes all nodes before a node for its ancestors."""

    def causal(parents):
        return torch.ones(parents.shape[1], parents.shape[1], dtype=torch.bool).tril().expand(len(parents), -1, -1)

    monkeypatch.setattr("treespec.hf.recurrent.nodes.ancestor_mask", causal)
    with pytest.warns(TreespecWarning, match="bamba.*by chains because.*tree logits differ"):
        scorer = make_scorer(build("bamba"))
    assert isinstance(scorer, RecurrentScorer)
    assert scorer.max_positions is None


def test_a_model_is_checked_once_per_dtype_and_attention_and_not_kept_alive(monkeypatch):
    calls, right = [], selfcheck._check
    monkeypatch.setattr(selfcheck, "_check", lambda *args: calls.append(1) or right(*args))
    model = build("llama")
    for change in (lambda: None, lambda: model.to(torch.bfloat16), lambda: model.set_attn_implementation("eager")):
        calls.clear()
        change()
        for _ in range(2):
            make_scorer(model)
        assert len(calls) == 1
    known = weakref.ref(model)
    del model, change
    gc.collect()
    assert known() is None
    make_scorer(build("llama"))
    assert len(calls) == 2


class TestUndisturbed:
    def test_random_state_training_flags_hooks_and_weights(self):
        model: Any = build("gpt2").train()
        model.transformer.h[0].eval()
        flags = {name: module.training for name, module in model.named_modules()}
        hook = model.lm_head.register_forward_hook(lambda *_: None)
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        state = torch.get_rng_state()
        assert check(model).capability == Capability.TREE
        assert torch.equal(torch.get_rng_state(), state)
        assert {name: module.training for name, module in model.named_modules()} == flags
        assert list(model.lm_head._forward_hooks) == [hook.id]
        assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
        assert all(weight.grad is None for weight in model.parameters())

    def test_also_when_it_raises(self):
        model = build("llama").train()
        with torch.no_grad():
            model.lm_head.weight.fill_(torch.nan)
        with pytest.raises(LogitsError, match="NaN logits for a plain pass"):
            check(model)
        assert model.training

    def test_memory_errors_are_not_taken_for_an_answer(self, monkeypatch):
        def full(*_):
            raise torch.OutOfMemoryError("no memory")

        plant_mask(full)(monkeypatch)
        with pytest.raises(torch.OutOfMemoryError):
            check(build("llama"))


class Forbidding(nn.Module):
    """A head that forbids some tokens outright, as models with image tokens do."""

    def __init__(self, head, value):
        super().__init__()
        self.head, self.value = head, value

    def forward(self, hidden):
        logits = self.head(hidden)
        logits[..., :5] = self.value
        return logits


@pytest.mark.parametrize("value", [-torch.inf, torch.finfo(torch.float32).min])
def test_forbidden_tokens_do_not_matter(value):
    model = build("llama")
    model.lm_head = Forbidding(model.lm_head, value)
    result = check(model)
    assert result.capability == Capability.TREE
    assert result.tolerance < 1e-3


def test_noise_does_not_loosen_the_tolerance_beyond_what_a_wrong_mask_does(monkeypatch):
    """A model whose own passes differ a lot is held to the largest tolerance, not by ten times its noise."""
    model = build("llama")
    generator = torch.Generator().manual_seed(0)
    noise = lambda module, inputs, logits: logits + 0.05 * torch.randn(logits.shape, generator=generator)  # noqa: E731
    hook = model.lm_head.register_forward_hook(noise)
    result = check(model)
    hook.remove()
    assert (result.capability, result.tolerance) == (Capability.TREE, LARGEST_TOLERANCE)
    assert max(LEAST_TOLERANCE.values()) < LARGEST_TOLERANCE


def test_a_root_may_differ_by_what_the_self_check_takes_for_rounding(monkeypatch):
    """Activations of 8 bits: the same token read with its prompt and alone differs by more than in full precision."""
    facts = model_facts(build("llama"))
    assert root_tolerance(facts) == pytest.approx(10 * LEAST_TOLERANCE[torch.float32])
    for tolerance, expected in ((0.1, LARGEST_TOLERANCE), (0.45, 0.45)):
        monkeypatch.setitem(
            selfcheck._results.by_model, facts.model, {(): Detection(Capability.TREE, tolerance=tolerance)}
        )
        assert root_tolerance(facts) == expected


def test_rounded_activations_are_allowed_what_other_tokens_may_round(monkeypatch):
    model, least = build("llama"), LEAST_TOLERANCE[torch.bfloat16]
    monkeypatch.setattr(selfcheck, "rounds_activations", lambda facts: True)
    assert least <= check(model).tolerance < 2 * least
    assert root_tolerance(model_facts(model)) == min(10 * check(model).tolerance, LARGEST_TOLERANCE)


MOST_PASSES = 5


def first_use(model, **options):
    """The capability of a model's scorer, and how many passes its first use took."""
    with patch.object(nn.Embedding, "forward", autospec=True, side_effect=nn.Embedding.forward) as embed:
        return make_scorer(model, **options).capability, embed.call_count


@pytest.mark.parametrize(("options", "dtype"), [({}, torch.float32), ({"max_cache_len": 64}, torch.bfloat16)], ids=str)
def test_a_model_that_is_right_takes_few_passes(options, dtype):
    model = build("llama").to(dtype)
    capability, num_passes = first_use(model, **options)
    assert capability == Capability.TREE
    assert 0 < num_passes <= MOST_PASSES
    assert first_use(model, **options) == (Capability.TREE, 0)
