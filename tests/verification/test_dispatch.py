"""Verification on a CPU uses one thread, and gives the others back whatever happens."""

from __future__ import annotations

import pytest
import torch

import treespec
from treespec.engine.target_probs import TargetProbs
from treespec.protocols import History
from treespec.sampling import NoProcessors
from treespec.verification import RULES
from treespec.verification.dispatch import one_thread, verify_batch

VOCAB_SIZE = 50_000
"""Too large for the dense rules of a CPU."""


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Watching:
    """The target walk, which notes how many threads there are."""

    def __init__(self, error: Exception | None = None) -> None:
        self.name, self.is_lossless, self.error, self.seen = "watching", True, error, 0

    def reason_against(self, trees):
        """None: it verifies every tree."""

    def verify(self, tree, target_probs, rng):
        self.seen = torch.get_num_threads()
        if self.error is not None:
            raise self.error
        return RULES["target_walk"].verify(tree, target_probs, rng)


def verified(rule):
    trees = treespec.TreeBatch(torch.tensor([[1, 2]]), torch.tensor([[-1, 0]]))
    history = History(torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))
    probs = TargetProbs(trees, torch.zeros(1, 2, VOCAB_SIZE), history, NoProcessors(), [0], is_sampling=True)
    return verify_batch(rule, trees, probs, torch.full((1, 2), 0.5), torch.full((1, 2), 0.5))


def test_a_walk_has_one_thread():
    rule = Watching()
    assert len(verified(rule)) == 1
    assert rule.seen == 1
    assert torch.get_num_threads() == 2


def test_threads_come_back_after_an_error():
    rule = Watching(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        verified(rule)
    assert rule.seen == 1
    assert torch.get_num_threads() == 2


def test_accelerators_are_left_alone():
    with one_thread(torch.device("meta")):
        assert torch.get_num_threads() == 2
