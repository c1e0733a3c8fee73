"""Processors that allow nothing after texts that plain decoding never reaches, through the whole engine."""

import random
from collections import Counter
from functools import cache

import pytest
import torch
from helpers.tiny import identical, noisy_copy, padded, tiny_llama
from transformers import LogitsProcessorList

import treespec
from treespec.errors import LogitsError
from treespec.policies import BestFirst, Chain
from treespec.testing import enumerate_continuations, g_test
from treespec.verification import RULES, dispatch

VOCAB_SIZE = 24
PROMPT = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7]])
END = 9
TARGET = tiny_llama(VOCAB_SIZE)


class Trie:
    """Allows the texts of a list only: after all others nothing."""

    def __init__(self, texts):
        self.next = {}
        for text in texts:
            for i, token in enumerate(text):
                self.next.setdefault(text[:i], set()).add(token)
        self._known = {}

    def __call__(self, ids, scores):
        known = [self._allowed(tuple(text)) for text in ids[:, PROMPT.shape[1] :].tolist()]
        return scores.masked_fill(~torch.stack(known), -torch.inf)

    def _allowed(self, text):
        if text not in self._known:
            self._known[text] = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
            self._known[text][sorted(self.next.get(text, ()))] = True
        return self._known[text]


class Table(Trie):
    """Knows the texts of a list only: after all others it raises."""

    def __call__(self, ids, scores):
        for text in ids[:, PROMPT.shape[1] :].tolist():
            self.next[tuple(text)]
        return super().__call__(ids, scores)


class NothingAfterTheEnd:
    def __call__(self, ids, scores):
        has_ended = (ids[:, PROMPT.shape[1] :] == END).any(1, keepdim=True)
        return scores.masked_fill(has_ended, -torch.inf)


@pytest.fixture(params=["dense", "walk"])
def form(request, monkeypatch):
    monkeypatch.setattr(dispatch, "DENSE_ON_CPU", 1 << 12 if request.param == "dense" else 0)


def texts(length=10):
    """Few of all texts, among them what the prompt repeats."""
    random_tokens = random.Random(1)
    drawn = [tuple(random_tokens.randrange(VOCAB_SIZE) for _ in range(length)) for _ in range(300)]
    return [*drawn, *[(5, 6, *text[2:]) for text in drawn[:20]]]


WARPED = {"top_p": 0.9, "temperature": 0.8, "renormalize_logits": True}


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("kind", "warpers"), [(Trie, {}), (Table, {"renormalize_logits": True})])
def test_greedy_texts_of_a_trie(warpers, kind):
    batch = padded(PROMPT.repeat(3, 1), [0, 2, 5])
    options = {"max_new_tokens": 10, "logits_processor": LogitsProcessorList([kind(texts())]), **warpers}
    for drafter in (treespec.SuffixLookup(), noisy_copy(TARGET)):
        identical(TARGET, batch, treespec.TreeSpeculation(drafter, tree=8), **options)


@pytest.mark.usefixtures("form")
def test_nothing_is_allowed_after_the_end():
    processors = LogitsProcessorList([NothingAfterTheEnd()])
    options = {"max_new_tokens": 20, "eos_token_id": END, "do_sample": False}
    prompts = torch.randint(1, VOCAB_SIZE, (40, PROMPT.shape[1]), generator=torch.Generator().manual_seed(0))
    expected = TARGET.generate(prompts, **options)
    ended = (expected[:, PROMPT.shape[1] :] == END).any(1).nonzero().flatten().tolist()
    assert len(ended) >= 2
    options |= {"logits_processor": processors}
    with_scores = options | {"return_dict_in_generate": True, "output_scores": True}
    for row in ended[:2]:
        ids = prompts[row : row + 1]
        plain = TARGET.generate(ids, **options)
        for drafter in (TARGET, treespec.SuffixLookup()):
            speculation = treespec.TreeSpeculation(drafter, tree=8)
            assert torch.equal(TARGET.generate(ids, **options, custom_generate=speculation), plain)
            found = TARGET.generate(ids, **with_scores, custom_generate=speculation)
            assert torch.equal(found.sequences, plain)


SHORT = [text[:3] for text in texts()]
SAMPLED = {"plain": {"top_k": 0}, "warped": WARPED}


@cache
def exact(name):
    """The target's distribution of the short texts under further options of a call: the trie's, and so the table's."""
    step = {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True, **SAMPLED[name]}
    step |= {"do_sample": True, "logits_processor": LogitsProcessorList([Trie(SHORT)])}

    def next_probs(contexts):
        following = torch.tensor(contexts, dtype=torch.int64)
        prompts = torch.cat([PROMPT.expand(len(contexts), -1), following], 1)
        return TARGET.generate(prompts, **step).scores[0].softmax(-1)

    return enumerate_continuations(next_probs, 3).joint


@pytest.mark.parametrize(
    ("form", "kind", "name", "drafter"),
    [
        ("dense", Trie, "plain", "model"),
        ("dense", Table, "warped", "lookup"),
        ("walk", Trie, "warped", "lookup"),
        ("walk", Table, "plain", "model"),
    ],
    indirect=["form"],
)
@pytest.mark.usefixtures("form")
def test_sampled_texts_of_a_trie_have_the_targets_distribution(name, kind, drafter):
    options = {"do_sample": True, "logits_processor": LogitsProcessorList([kind(SHORT)]), **SAMPLED[name]}
    assert sum(exact(name).values()) == pytest.approx(1)
    source = treespec.SuffixLookup() if drafter == "lookup" else noisy_copy(TARGET)
    speculation = treespec.TreeSpeculation(source, tree=8, seed=0)
    rows = TARGET.generate(PROMPT.repeat(120, 1), max_new_tokens=3, custom_generate=speculation, **options)
    assert g_test(Counter(map(tuple, rows[:, PROMPT.shape[1] :].tolist())), exact(name)) > 1e-4


@pytest.mark.parametrize(("form", "do_sample"), [("dense", True), ("walk", False)], indirect=["form"])
@pytest.mark.parametrize(
    ("kind", "error", "words"), [(Trie, LogitsError, "no token above -inf|allows no token"), (Table, KeyError, None)]
)
@pytest.mark.usefixtures("form")
def test_a_kept_text_without_a_distribution_is_an_error(kind, error, words, do_sample):
    """That of the processor, where it raises."""
    processors = LogitsProcessorList([kind([text[:4] for text in texts()])])
    options = {"max_new_tokens": 8, "do_sample": do_sample, "logits_processor": processors}
    for drafter in (treespec.SuffixLookup(), TARGET):
        with pytest.raises(error, match=words):
            TARGET.generate(PROMPT, custom_generate=treespec.TreeSpeculation(drafter, tree=8), **options)


def test_every_rule_that_a_draft_may_have_is_run():
    options = {"max_new_tokens": 10, "do_sample": True, "logits_processor": LogitsProcessorList([Trie(texts())])}
    allowed = set(texts())
    for name, rule in RULES.items():
        if rule.requirements.needs_fixed_width:
            continue  # tests/verification/test_dead_ends.py.
        children = "iid" if "iid" in rule.requirements.sampling_schemes else "selected"
        is_chain = rule.requirements.is_chain_only
        tree = Chain(4, children=children) if is_chain else BestFirst(8, children=children)
        speculation = treespec.TreeSpeculation(noisy_copy(TARGET), tree=tree, verification=name, seed=0)
        found = TARGET.generate(PROMPT.repeat(2, 1), custom_generate=speculation, **options)
        assert {tuple(row) for row in found[:, PROMPT.shape[1] :].tolist()} <= allowed, name
