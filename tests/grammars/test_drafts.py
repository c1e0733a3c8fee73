"""Drafts under constraints: nothing forbidden, what is forced without a drafter, and the target's own distribution."""

from collections import Counter

import pytest
import torch
from helpers.grammars import Sometimes, SometimesRising, Spelled, check_constrained, constrained_distribution
from helpers.tiny import padded, prompt
from transformers import LogitsProcessorList

import treespec
from treespec import BestFirst, SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.drafters import DraftModel
from treespec.grammars import GrammarProcessor
from treespec.hf import make_scorer
from treespec.literature import AdaptiveChain
from treespec.policies import Chain
from treespec.testing import g_test


@pytest.mark.parametrize("policy", [8, AdaptiveChain(4)], ids=["tree", "chain"])
def test_drafters_that_were_not_asked_go_on(target, draft, policy):
    """Forced names between free tokens, with drafters that learn from every step."""
    processor, inputs = GrammarProcessor(Sometimes()), padded(prompt(2), [0, 3])
    for drafter in (draft, [draft, TokenRecycling(), SuffixLookup()], SuffixLookup()):
        speculation = TreeSpeculation(drafter, tree=policy)
        check_constrained(target, inputs, processor, speculation, max_new_tokens=30)
        assert speculation.stats.num_accepted_tokens > 10


@pytest.mark.parametrize(
    ("do_sample", "tree", "num_forced"), [(False, 8, 7), (True, Chain(3), 3)], ids=["tree", "sampled chain"]
)
def test_what_is_forced_costs_no_draft_pass(target, draft, do_sample, tree, num_forced):
    """30 tokens and the end of text: after the first each step takes as many as the tree has nodes."""
    options = {"max_new_tokens": 40, "eos_token_id": 1, "do_sample": do_sample}
    processor, inputs = GrammarProcessor(Spelled()), {"input_ids": prompt(2)}
    drafter = DraftModel(make_scorer(draft))
    drafter.expand = None  # It would fail.
    speculation = TreeSpeculation(drafter, tree=tree, record_steps=True)
    assert check_constrained(target, inputs, processor, speculation, **options).shape == (2, 12 + 31)
    first, *emitted = [len(step.emitted[0]) for step in speculation.steps[:-1]]
    assert (first, emitted) == (1, [num_forced + 1] * (30 // (num_forced + 1)))


class FirstRowSpelled:
    """A `prefix_allowed_tokens_fn`: the first row gets one text, the others are free below 60."""

    def __call__(self, row, ids):
        position = len(ids) - 12
        return [5 + 7 * position % 50] if row == 0 and position < 20 else list(range(2, 60))


@pytest.mark.parametrize("do_sample", [False, True])
def test_one_row_is_forced_among_others(target, draft, do_sample):
    options = {"prefix_allowed_tokens_fn": FirstRowSpelled(), "max_new_tokens": 22}
    inputs = padded(prompt(3), [2, 0, 3])
    plain = target.generate(**inputs, **options, do_sample=False)
    for drafter in (draft, TokenRecycling()):
        speculation = TreeSpeculation(drafter, tree=8, record_steps=True, seed=0)
        out = target.generate(**inputs, **options, do_sample=do_sample, custom_generate=speculation)
        first = [step.emitted[step.rows.index(0)] for step in speculation.steps if 0 in step.rows]
        assert list(map(len, first[:3])) == [1, 8, 8]
        assert torch.equal(out[0, 12:32], plain[0, 12:32])
        assert do_sample or torch.equal(out, plain)


RULES = [
    ("recycled", 6, "auto"),
    ("chain", Chain(3, children="iid"), "block"),
    ("i.i.d.", BestFirst(6, children="iid"), "recursive"),
    ("without replacement", BestFirst(6, children="without_replacement"), "traversal"),
]


@pytest.mark.parametrize(("name", "tree", "rule"), RULES, ids=[f"{name}, {rule}" for name, _, rule in RULES])
def test_sampled_text_follows_the_targets_constrained_distribution(target, draft, name, tree, rule):
    """Four tokens of 400 rows, of which some are forced while others are free."""
    ids, start = prompt(1, length=5), SometimesRising(9)
    exact = constrained_distribution(target, ids, start, 4)
    speculation = TreeSpeculation(TokenRecycling() if name == "recycled" else draft, tree=tree, verification=rule)
    options = {"do_sample": True, "top_k": 3, "temperature": 2.0, "max_new_tokens": 4, "num_return_sequences": 400}
    processors = LogitsProcessorList([GrammarProcessor(start)])
    if name == "recycled":  # Tables are empty in the first call.
        treespec.generate(target, ids, speculation, seed=2, logits_processor=processors, **options)
    out = treespec.generate(target, ids, speculation, seed=1, logits_processor=processors, **options)
    found = Counter(map(tuple, out[:, 5:].tolist()))
    assert g_test(found, exact) > 1e-3
    assert speculation.stats.num_accepted_tokens > 50
