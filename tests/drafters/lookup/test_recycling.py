"""Token recycling: the table equals a plain loop, ranks learn how often they are right."""

import numpy as np
import pytest
import torch
from helpers.drafter_loop import VOCAB, Loop

from treespec.drafters import TokenRecycling
from treespec.drafters.lookup import recycling
from treespec.drafters.lookup.recycling import MOST_UNREAD
from treespec.drafters.lookup.recycling_table import Table
from treespec.policies import BestFirst, Chain, KAry
from treespec.tree import TreeBatch

PROMPTS = [[1, 2, 3], [4], [5, 0, 2, 2, 1]]


def numpy_table(table, batch, logits, k):
    for row in range(batch.num_rows):
        for node in range(batch.max_nodes):
            if batch.parents[row, node] != -2:
                order = np.argsort(-logits[row, node].numpy(), kind="stable")
                table[int(batch.tokens[row, node])] = order[:k]


@pytest.mark.parametrize("policy", [BestFirst(8), KAry((2, 2)), Chain(3), BestFirst(8, beam=8)])
def test_recycling_table_equals_a_loop(policy):
    drafter, table = TokenRecycling(num_candidates=3), np.full((VOCAB, 3), -1)
    generator = torch.Generator().manual_seed(5)
    for call in range(2):
        loop = Loop(drafter, PROMPTS, policy, is_sampling=bool(call), seed=call)
        assert (drafter.table.numpy() == table).all(), "the table stays across calls"
        for step in range(10):
            batch = loop.propose()
            for tree in batch.trees:
                for node in range(tree.num_nodes):
                    children = [tree.token(i) for i in tree.children(node)]
                    assert children == [t for t in table[tree.token(node)] if t >= 0][: len(children)]
            logits = torch.randn(*batch.tokens.shape, VOCAB, generator=generator)
            loop.step(batch, logits)
            numpy_table(table, batch, logits, 3)
            assert (drafter.table.numpy() == table).all()
            if step == 6:
                loop.keep_rows([1])
    assert (np.diff(drafter.rank_probs.numpy()) <= 0).all()


def test_recycling_ranks_learn_how_often_they_are_right():
    drafter = TokenRecycling(num_candidates=4)
    loop = Loop(drafter, [[1]], BestFirst(6))
    logits = torch.zeros(1, 6, VOCAB)
    logits[..., :4] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    before = drafter.rank_probs.clone()
    for _ in range(60):
        batch = loop.propose()
        loop.step(batch, logits[:, : batch.max_nodes])
    assert drafter.rank_probs[0] > 0.9 > before[0]
    assert drafter.rank_probs[1] < before[1]


def test_recycling_counts_are_halved_before_float32_stops_counting():
    table = Table(
        torch.tensor([[1, 2], [2, 0], [0, 1], [1, 0], [0, 1], [3, 4]]), torch.tensor([2.0**23, 2.0**22, 2.0**24])
    )
    drafter = TokenRecycling(table=table)
    loop = Loop(drafter, [[1]], BestFirst(2))
    loop.step(loop.propose())
    assert drafter.rank_probs.tolist() == pytest.approx([0.5, 0.25], abs=1e-4), "what is estimated stays"
    before = drafter.rank_probs
    for _ in range(40):
        loop.step(loop.propose())
    assert not torch.equal(drafter.rank_probs, before), "and goes on learning"


def test_steps_without_drafts_are_learned_when_the_table_is_next_read():
    """The latest of them; they cost nothing until then."""
    drafter, generator = TokenRecycling(num_candidates=3), torch.Generator().manual_seed(5)
    loop, expected = Loop(drafter, PROMPTS, BestFirst(8)), []
    for _ in range(MOST_UNREAD + 3):
        roots = loop.history.last_tokens.unsqueeze(1)
        batch = TreeBatch(roots, torch.full_like(roots, -1))
        logits = torch.randn(*roots.shape, VOCAB, generator=generator)
        loop.step(batch, logits)
        expected.append((batch, logits))
    assert len(drafter._unread) == MOST_UNREAD
    table = np.full((VOCAB, 3), -1)
    for batch, logits in expected[-MOST_UNREAD:]:
        numpy_table(table, batch, logits, 3)
    assert (drafter.table.numpy() == table).all()
    assert not drafter._unread


def test_waiting_steps_together_have_a_bounded_number_of_logits(monkeypatch):
    """Each later step here is as large as several of the first ones together."""
    drafter = TokenRecycling()
    loop = Loop(drafter, PROMPTS, BestFirst(8))
    roots = loop.history.last_tokens.unsqueeze(1)
    size = roots.numel() * VOCAB
    monkeypatch.setattr(recycling, "MANY_LOGITS", 6 * size)
    for num_nodes in (1, 1, 1, 1, 4, 4):
        parents = torch.arange(-1, num_nodes - 1).repeat(len(roots), 1)
        loop.step(TreeBatch(roots.repeat(1, num_nodes), parents))
        assert sum(step.scores.logits.numel() for step in drafter._unread) <= 6 * size
    assert len(drafter._unread) == 1
    table = drafter._table
    assert table is not None
    assert (table == -1).all()
    monkeypatch.setattr(recycling, "MANY_LOGITS", 3 * size)
    loop.step(TreeBatch(roots.repeat(1, num_nodes), parents))
    assert (table >= 0).any(), "a step with many logits is learned from at once"
