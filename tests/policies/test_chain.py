"""Chains that stop: the rules and the cut; and chains that learn their length."""

import pytest
import torch
from helpers.grown_trees import checked, token_path
from helpers.toy_models import FixedLength, TableLM, TableSource, ToyScorer
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.drafters import DraftModel, Merge, TokenRecycling
from treespec.drafters.registry import DRAFTERS as REGISTERED
from treespec.engine.loop import Run, speculate
from treespec.errors import ConfigError
from treespec.literature import AdaptiveChain, LowConfidence, Truncated
from treespec.policies import Chain
from treespec.protocols import Capability, Scores, VerifiedStep
from treespec.tree import SELECTED, TokenTree, TreeBatch, Verdict

RULES = {"confidence": LowConfidence(0.5), "rejection": lambda token_probs: 1 - token_probs.prod(1) > 0.6}


def plain_length(name, probs):
    """How many tokens of a chain with these draft probabilities are drafted, in plain Python."""
    product = 1.0
    for number, prob in enumerate(probs, start=1):
        product *= prob
        if prob < 0.5 if name == "confidence" else 1 - product > 0.6:
            return number
    return len(probs)


@given(
    st.sampled_from(sorted(RULES)),
    st.booleans(),
    st.booleans(),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 99),
    st.sampled_from([None, 3]),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_chains_end_where_the_rule_says(name, is_sampling, is_sparse, k, max_depth, seed, num_candidates):
    def source():
        model = TableLM(5, seed, scale=2.5)
        roots = [0, 1, 2, 3]
        return TableSource(roots, model, is_sampling, num_candidates, is_sparse, seed, torch.float64)

    distributions = source()
    stopped = source()
    batch = Chain(k, stop=RULES[name]).grow(stopped, max_depth)
    full = Chain(k).grow(source(), max_depth)
    assert bool(batch.is_valid)
    assert len(stopped.widths) == batch.max_nodes - 1, "stopping saves draft passes"
    assert batch.is_chain
    assert batch.is_width_fixed
    assert batch.sampling_schemes <= full.sampling_schemes
    for row in range(4):
        tree, whole = checked(batch, row), full.trees[row]
        path = token_path(whole, whole.num_nodes - 1)
        probs = [float(distributions.probs(path[:i])[path[i]]) for i in range(1, len(path))]
        assert tree.tokens.tolist() == list(path[: 1 + plain_length(name, probs)])
        for node in range(1, tree.num_nodes):
            assert (tree.draft_probs_of(node) is None) == (whole.draft_probs_of(node) is None)
            if tree.draft_probs_of(node) is not None:
                torch.testing.assert_close(
                    tree.draft_probs_of(node), distributions.probs(path[:node]), atol=1e-9, rtol=0
                )


def step_of(lengths, accepted):
    """A verified step of chains with so many draft tokens, of which so many were accepted."""
    trees = TreeBatch.from_trees([TokenTree.chain([0] * (1 + length)) for length in lengths])
    verdicts = [Verdict(tuple(range(n + 1)), 0, n == length) for length, n in zip(lengths, accepted, strict=True)]
    return VerifiedStep(trees, verdicts, Scores(torch.zeros(*trees.tokens.shape, 1)), [[0]] * len(lengths))


def test_adaptive_chain_follows_its_verdicts():
    policy = AdaptiveChain(3, max_k=6)
    assert policy.max_nodes == 7
    for lengths, accepted, expected in [
        ([3], [3], 5),
        ([5], [4], 4),
        ([0], [0], 4),  # nothing drafted, nothing learnt
        ([4], [4], 6),
        ([6], [6], 6),
        ([6, 6, 0], [6, 2, 0], 6),
        ([6, 6, 6], [6, 2, 0], 5),
    ]:
        policy.update(step_of(lengths, accepted))
        assert policy.k == expected
        assert policy.grow(TableSource([0], TableLM(4)), 99).max_nodes == expected + 1
    for _ in range(9):
        policy.update(step_of([2], [0]))
    assert policy.k == 1


class CountedChain(AdaptiveChain):
    num_updates = 0

    def update(self, step):
        self.num_updates += 1
        super().update(step)


PROMPTS = torch.tensor([[1, 2, 3, 1, 2], [2, 0, 1, 3, 0]])
DRAFTERS = {"draft model": lambda: DraftModel(ToyScorer(TableLM(4, seed=3))), **REGISTERED}


def decode(drafter, policy, capability=Capability.TREE, prompts=PROMPTS, **options):
    scorer, mask = ToyScorer(TableLM(4, seed=3), capability), torch.ones_like(prompts, dtype=torch.bool)
    return speculate(Run(scorer, drafter, prompts, mask, FixedLength(45), policy=policy, seed=0, **options))


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_calls_policy_learns_once_per_step(name):
    policy = CountedChain(2, max_k=8)
    result = decode(DRAFTERS[name](), policy, Capability.TREE, PROMPTS[:1], is_sampling=False)
    assert policy.num_updates == result.stats.num_target_passes > 1
    assert policy.k != 2
    parts = CountedChain(2, max_k=8)
    merge = Merge([DRAFTERS[name](), TokenRecycling(4)])
    result = decode(merge, Truncated(parts), Capability.CHAIN, PROMPTS[:1], is_sampling=False)
    assert parts.num_updates == result.stats.num_target_passes > 1


@pytest.mark.parametrize("capability", [Capability.CHAIN, Capability.TREE])
def test_stopped_chains_of_a_draft_model_keep_its_cache(capability):
    """Rows end at different depths; the toy scorer rejects holes, and a chain scorer any padding."""
    draft = DraftModel(ToyScorer(TableLM(4, seed=4), capability))
    result = decode(draft, Chain(5, SELECTED, stop=LowConfidence(0.5)), is_sampling=False)
    alone = decode(DraftModel(ToyScorer(TableLM(4, seed=4))), Chain(1), is_sampling=False)
    assert result.tokens == alone.tokens
    assert len(result.stats.num_drafted_at_depth) > 1


def test_a_rule_that_returns_no_flags_is_named():
    for stop in (lambda probs: True, lambda probs: probs[:, -1], lambda probs: probs < 0.5):
        with pytest.raises(ConfigError, match=r"must return bool \[2\]"):
            Chain(3, stop=stop).grow(TableSource([0, 1], TableLM(4)), 3)
