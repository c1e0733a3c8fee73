"""Every drafter with every policy: greedy output is plain greedy output, in a batch with left padding.

All policies with a model that keeps a cache; the other drafters with one policy of each way to grow: by chains, by
levels, by the best nodes, by passes over several depths. The other pairs are slow.
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
from treespec.tree import MIXED, WITHOUT_REPLACEMENT

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
NEED_PROBS = {"mixed", "dyspec"}
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
HAVE_PROBS = ("shared tokens", "re-encoding", "draft model", "medusa", "block")
WITH_ALL_DRAFTERS = ("Chain", "KAry", "BestFirst", "SpecExec")
PAIRS = [
    pytest.param(d, p, marks=[] if d == "draft model" or p in WITH_ALL_DRAFTERS else pytest.mark.slow)
    for d in DRAFTERS
    for p in POLICIES
    if d in HAVE_PROBS or p not in NEED_PROBS
]
OPTIONS = {"max_new_tokens": 16, "do_sample": False}


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
    # The control drafts rarely with a draft model as large as the target, and rests after drafts of an empty table.
    assert speculation.stats.num_draft_tokens > 0 or (drafter, policy) == ("recycling", "Control")
    if drafter in ("draft model", "shared tokens", "re-encoding") and policy != "Control":
        assert speculation.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("policy", sorted(NEED_PROBS))
def test_policies_that_sample_refuse_candidates(target, inputs, policy):
    speculation = treespec.TreeSpeculation(TokenRecycling(), tree=POLICIES[policy]())
    with pytest.raises(treespec.TreespecError, match="must be selected"):
        target.generate(**inputs, **OPTIONS, custom_generate=speculation)


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_verifies_the_trees_of_every_policy(target, inputs, draft, policy):
    """`verification="auto"` names a lossless rule for the trees, and the policy's children are what it says."""
    options = {"max_new_tokens": 16, "do_sample": True, "temperature": 1.5}
    speculation = treespec.TreeSpeculation(DraftModel(draft), tree=POLICIES[policy](), seed=1, record_steps=True)
    out = target.generate(**inputs, **options, custom_generate=speculation)
    assert out.shape == (2, 30)
    sampling_schemes = frozenset().union(*(tree.sampling_schemes for step in speculation.steps for tree in step.trees))
    if policy in ("eagle2", "opt_tree", "SpecExec"):
        assert sampling_schemes == {"selected"}
    elif policy != "mixed":
        assert "selected" not in sampling_schemes
    if policy in ("dyspec", "StochasticBeam", "BestFirst", "KAry"):
        assert WITHOUT_REPLACEMENT in sampling_schemes


def test_every_policy_is_here():
    """A new policy joins the matrix."""
    given = {"StopRule", "TreeBuilder", "as_policy", "optimal_paths"}
    assert set(policies.__all__) - given <= set(POLICIES)
