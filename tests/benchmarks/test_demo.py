"""The demo's numbers: probabilities of nodes, paired ratios, verdicts."""

import pytest
import torch
from helpers.tiny import prompt, tiny_llama

from benchmarks.demo.picture import node_probs
from treespec import TokenTree
from treespec.commands.bench import measured_of
from treespec.lab.measure.paired import PLAIN, Run, speeds, verdict
from treespec.lab.selftest.agreement import Agreement
from treespec.tree import Verdict


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@torch.no_grad()
def test_node_probs_are_those_of_plain_passes(model):
    prefix, tree = prompt()[0], TokenTree.from_paths([(0,), (1,), (0, 0)], [5, 6, 7, 8])
    probs = node_probs(model, prefix, tree, Verdict((0, 1, 3), 9, is_bonus=True))
    distributions = [
        model(torch.cat([prefix, torch.tensor(p)])[None]).logits[0, -1].softmax(-1) for p in ([5], [5, 6], [5, 6, 8])
    ]
    expected = [1.0, distributions[0][6], distributions[0][7], distributions[1][8], distributions[2][9]]
    assert torch.allclose(torch.tensor(probs), torch.tensor(expected), atol=1e-5)


def test_ratios_are_paired():
    plain = [Run([[1, 2]], 0.2, 2), Run([[1, 2]], 2.0, 2), Run([[1, 2]], 0.3, 2)]
    mine = [Run([[1, 2]], 0.1, 1), Run([[1, 2]], 1.0, 1), Run([[1, 2]], 0.05, 1)]
    runs = {PLAIN: {"chat": plain}, "tree": {"chat": mine}}
    assert speeds(runs, "tree") == [pytest.approx(2.0)]
    assert measured_of(runs, "tree").speeds == speeds(runs, "tree")
    assert (plain[0].ms_per_token, mine[0].tokens_per_pass) == (pytest.approx(100.0), 2.0)


def test_verdict_counts_ties_and_wrong_outputs():
    same, tie, wrong = Agreement(None, False), Agreement(3, True), Agreement(3, False)
    assert verdict([same, same]) == "2 of 2"
    assert verdict([same, tie, wrong]) == "1 of 3, 1 differ after a tie, 1 WRONG"
