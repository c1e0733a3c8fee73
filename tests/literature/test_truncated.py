"""Truncated draft distributions are stored as drawn from, and optimal transport verifies them end to end."""

import pytest
import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama
from helpers.toy_models import TableLM, TableSource

from treespec import TreeSpeculation, generate
from treespec.errors import RuleMismatchError
from treespec.literature import Truncated
from treespec.policies import Chain, KAry
from treespec.policies.wrapping import as_chain, is_chain
from treespec.tree import IID, SELECTED, WITHOUT_REPLACEMENT


@pytest.mark.parametrize("children", [IID, WITHOUT_REPLACEMENT, SELECTED])
def test_distributions_are_those_of_the_most_probable_tokens(children):
    model = TableLM(9)
    batch = Truncated(KAry((2, 2), children), 3).grow(TableSource([0, 1], model, dtype=torch.float64), 2)
    assert bool(batch.is_valid)
    for row, tree in enumerate(batch.trees):
        for node in range(1, tree.num_nodes):
            probs = model.logits([tree.token(i) for i in tree.path_to(tree.parent_list[node])]).softmax(-1)
            assert tree.token(node) in probs.topk(3).indices
            if children != SELECTED:
                assert batch.draft_probs is not None
                assert batch.draft_index is not None
                stored = batch.draft_probs[batch.draft_index[row, node]].float()
                kept = torch.zeros(9).scatter(0, probs.topk(3).indices, probs.topk(3).values)
                assert torch.allclose(stored, kept / kept.sum())


@pytest.mark.parametrize("rule", ["optimal_transport", "transport_traversal"])
def test_optimal_transport_end_to_end(rule):
    target = tiny_llama()
    draft, inputs = noisy_copy(target), {"input_ids": prompt()}
    options = {"max_new_tokens": 24, "do_sample": True}
    policy = KAry((2, 2, 2), WITHOUT_REPLACEMENT)
    speculation = TreeSpeculation(draft, tree=Truncated(policy), verification=rule, seed=0)
    assert generate(target, inputs, speculation, **options).shape == (1, 12 + 24)
    assert speculation.stats.num_accepted_tokens > 0
    with pytest.raises(RuleMismatchError, match=r"at most 20 tokens.*Truncated"):
        generate(target, inputs, TreeSpeculation(draft, tree=policy, verification=rule, seed=0), **options)


def test_candidates_pass_unchanged():
    plain, cut = (
        policy.grow(TableSource([0], TableLM(6), num_candidates=3), 2)
        for policy in (KAry((3, 2)), Truncated(KAry((3, 2)), 1))
    )
    assert cut.tokens.equal(plain.tokens)


def test_a_chain_in_its_stead_is_truncated_alike():
    """The policy of a model that runs no trees."""
    short = as_chain(Truncated(KAry((2, 2)), 7))
    assert isinstance(short, Truncated)
    assert (short.num_tokens, short.policy.k) == (7, 5)
    assert is_chain(short)
    assert not is_chain(Truncated(KAry((2, 2))))
    assert Truncated(KAry((2, 2))).max_nodes == 7
    chain = Truncated(Chain(9), 7)
    assert as_chain(chain).policy is chain.policy
