"""Every drafter with every policy: greedy output is plain greedy output, in a batch with left padding.

All policies with a model that keeps a cache; the other drafters with one policy of each way to grow: by chains, by
levels, by the best nodes, by passes over several depths.
"""

import pytest
import torch
from helpers.dflash_files import dspark, random_head
from helpers.medusa_files import random_heads
from helpers.tiny import identical, noisy_copy, padded, prompt
from helpers.toy_codec import ToyCodec

import treespec
from treespec import policies
from treespec.drafters import DraftModel, Merge, ReEncoding, SharedVocabulary, SuffixLookup, TokenRecycling
from treespec.heads import DFlash, Medusa
from treespec.literature import (
    AdaptiveChain,
    LowConfidence,
    SpecExec,
    StochasticBeam,
    Truncated,
    delayed_branching,
    dyspec,
    eagle2,
    opt_tree,
)
from treespec.policies import BestFirst, Chain, Control, KAry, Paths, Sequoia
from treespec.tree import MIXED

POLICIES = {
    "Chain": lambda: Chain(4),
    "LowConfidence": lambda: Chain(6, stop=LowConfidence(0.3)),
    "AdaptiveChain": lambda: AdaptiveChain(2, max_k=6),
    "Paths": lambda: Paths([(0,), (1,), (0, 0), (2,), (0, 1), (1, 0), (0, 0, 0)]),
    "KAry": lambda: KAry((2, 2, 1)),
    "mixed": lambda: KAry((2, 2), MIXED),
    "Sequoia": lambda: Sequoia([[0.6, 0.2, 0.1], [0.5, 0.2], [0.4]], 9),
    "delayed_branching": lambda: delayed_branching(2, (3, 1)),
    "Control": lambda: Control(10, pass_ms={1: 1000.0, 64: 1100.0}, is_timed=False),
    "BestFirst": lambda: BestFirst(10),
    "beam": lambda: BestFirst(10, beam=2, depth=4),
    "eagle2": lambda: eagle2(10, beam=3, depth=3),
    "opt_tree": lambda: opt_tree(10, min_gain=0.05, depth=4),
    "dyspec": lambda: dyspec(10, depth=3),
    "SpecExec": lambda: SpecExec(10, beam=3, num_passes=4),
    "StochasticBeam": lambda: StochasticBeam(3, 3),
    "Truncated": lambda: Truncated(KAry((2, 2, 1)), 5),
}
CODEC = ToyCodec([chr(48 + token) * 2 for token in range(60)] + ["<a>", "<b>", "<c>", "<d>"])
DRAFTERS = {
    "draft model": lambda draft: DraftModel(draft),
    "shared tokens": lambda draft: DraftModel(draft, vocabulary=SharedVocabulary(torch.arange(60))),
    "re-encoding": lambda draft: ReEncoding(draft, CODEC, CODEC),
    "medusa": lambda draft: Medusa(random_heads(3)),
    "block": lambda draft: DFlash(random_head(dspark(hidden_layers=(0, 1))), (0, 1)),
    "recycling": lambda draft: TokenRecycling(),
    "suffix": lambda draft: SuffixLookup(),
    "merge": lambda draft: Merge([TokenRecycling(), SuffixLookup()]),
}
WITH_ALL_DRAFTERS = ("Chain", "KAry", "BestFirst", "SpecExec")
PAIRS = [(d, p) for d in DRAFTERS for p in POLICIES if d == "draft model" or p in WITH_ALL_DRAFTERS]


@pytest.fixture(scope="module")
def inputs():
    return padded(prompt(2, 14), [0, 3])


@pytest.fixture(scope="module")
def draft(target):
    return treespec.TreeScorer(noisy_copy(target))


@pytest.mark.parametrize(("drafter", "policy"), PAIRS, ids=lambda name: name.replace(" ", "-"))
def test_greedy_equals_plain(target, inputs, draft, drafter, policy):
    speculation = treespec.TreeSpeculation(DRAFTERS[drafter](draft), tree=POLICIES[policy]())
    identical(target, inputs, speculation)
    assert speculation.stats.num_draft_tokens > 0
    # The control drafts rarely with a draft model as large as the target.
    if drafter in ("draft model", "shared tokens", "re-encoding") and policy != "Control":
        assert speculation.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("policy", ["eagle2", "opt_tree", "SpecExec", "Sequoia", "Control", "AdaptiveChain"])
def test_sampled_text_under_policies_that_are_not_enumerated(target, inputs, draft, policy):
    """By the rule that "auto" names for what their children are; the others: tests/policies/test_lossless.py."""
    speculation = treespec.TreeSpeculation(DraftModel(draft), tree=POLICIES[policy](), seed=1, record_steps=True)
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 1.5}
    target.generate(**inputs, **options, custom_generate=speculation)
    schemes = frozenset().union(*(tree.sampling_schemes for step in speculation.steps for tree in step.trees))
    assert (schemes == {"selected"}) == ("selected" in schemes) == (policy in ("eagle2", "opt_tree", "SpecExec"))


def test_every_policy_is_here():
    """A new policy joins the matrix."""
    given = {"StopRule", "TreeBuilder", "as_policy", "optimal_paths"}
    assert set(policies.__all__) - given <= set(POLICIES)
