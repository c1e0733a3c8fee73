"""Acceptance, rounds and trees against plain readings of what they say, and their report."""

import itertools

import pytest
import torch

from treespec.training.evaluate import EvaluatedDrafts, best_tree, evaluate, greedy_start, histogram, play_rounds
from treespec.training.report import acceptance_table, machine


def test_rounds_start_from_the_token_that_the_target_adds():
    right = torch.tensor([[1, 1], [0, 1], [0, 0], [1, 0], [1, 1], [1, 1], [1, 1]], dtype=torch.bool)
    evaluated = torch.tensor([[True, True]] * 6 + [[True, False]])
    # From 0 both are right, so 3 is next; there one is, so 5 is next.
    assert play_rounds((~right).long(), evaluated) == [2, 1, 2]
    evaluated[5, 1] = False
    assert play_rounds((~right).long(), evaluated) == [2, 1]


def test_chains_of_every_length_play_their_own_rounds():
    ranks = torch.tensor([[0, 0], [1, 1], [1, 1]] * 14)
    evaluated = torch.ones_like(ranks, dtype=torch.bool)
    found = evaluate([EvaluatedDrafts(ranks, torch.zeros(ranks.shape), evaluated, evaluated[:, 0])])
    # Chains of two meet nothing but the first of every three positions, chains of one the last of them as well.
    assert found.chain == {1: 1.5, 2: 3.0}


def test_the_summary_has_no_greedy_numbers_without_greedy_texts():
    ranks, evaluated = torch.zeros(12, 2, dtype=torch.int64), torch.ones(12, 2, dtype=torch.bool)
    found = evaluate([EvaluatedDrafts(ranks, torch.full(ranks.shape, 0.5), evaluated, ~evaluated[:, 0])])
    assert found.num_greedy_positions == 0
    assert found.chain == found.tree == {}
    assert found.summary() == {"overlap": 0.5, "sampled_chain_2": 1.75}
    assert acceptance_table(found).splitlines()[2].endswith("|  | 0.500 |")


def test_a_greedy_end_begins_after_the_last_other_token():
    best = torch.ones(50, dtype=torch.bool)
    best[[9, 49]] = False
    assert greedy_start(best) == 10
    best[30] = False
    assert greedy_start(best) == 50


def test_histogram_counts_ranks_by_depth():
    ranks = torch.tensor([[0, 3], [1, 2**30], [0, 0], [7, 7]])
    counted = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]], dtype=torch.bool)
    table = histogram(ranks, counted)
    assert table[0] == pytest.approx([0.5, 0.25, 0, 0, 0, 0, 0, 0.25])
    assert table[1] == pytest.approx([1 / 3, 0, 0, 1 / 3, 0, 0, 0, 0])


def test_the_best_tree_is_that_of_brute_force():
    acceptance = [[0.5, 0.1, 0.2], [0.4, 0.3, 0.1]]
    paths = [(r,) for r in range(3)] + list(itertools.product(range(3), repeat=2))

    def value(tree):
        return 1 + sum(torch.tensor([acceptance[d][r] for d, r in enumerate(path)]).prod().item() for path in tree)

    def is_tree(tree):
        return all(path[:-1] in tree or len(path) == 1 for path in tree)

    for size in (1, 2, 4, 6):
        best = max(value(tree) for tree in map(set, itertools.combinations(paths, size - 1)) if is_tree(tree))
        assert best_tree(acceptance, size) == pytest.approx(best)


def test_the_processor_is_named_where_it_did_the_work(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU at {device}")
    assert machine(torch.device("cuda:1")) == "a GPU at cuda:1"
