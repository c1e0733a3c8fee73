"""The control of a server: whether a step drafts and how many nodes are verified, on made-up times."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from treespec import TreeBatch, Verdict
from treespec.policies.control import CallFacts, Control
from treespec.protocols import Scores, VerifiedStep


def trees(values: list[list[float]]) -> TreeBatch:
    """Chains with these values below their roots; a node's token is its number."""
    width = len(values[0]) + 1
    tokens = torch.arange(width).expand(len(values), width).contiguous()
    parents = torch.arange(-1, width - 1).expand(len(values), width).contiguous()
    return TreeBatch(tokens, parents, values=torch.tensor([[1.0, *row] for row in values]))


def serving() -> Control:
    control = Control(16)
    control.begin(CallFacts("drafter", is_flat=True))
    return control


def plain_steps(num_requests: int) -> VerifiedStep:
    batch = trees([[]] * num_requests)
    return VerifiedStep(batch, [Verdict((0,), 0, False)] * num_requests, Scores(torch.zeros(0)), [[0]] * num_requests)


def learned(start: float, token: float, num_requests: int) -> Control:
    """A control that has seen passes of these times, and is to cut the draft of its next step."""
    control, rng = serving(), np.random.default_rng(0)
    for _ in range(300):
        tokens = num_requests + int(rng.integers(0, 64))
        control._learned.passes.update(tokens, num_requests, 0, start + token * tokens)
    control.choose(num_requests, 0)
    return control


class Server:
    """Steps of B requests: a pass of n tokens takes 100 + 4 n ms, a whole draft `draft_ms` B + 0.3 u with u
    unread tokens.

    Every draft is a chain per request with the first of these values, and as many nodes are accepted as they say.
    """

    def __init__(self, draft_ms: float, values: list[float]) -> None:
        self.control, self.draft_ms, self.values = serving(), draft_ms, values
        self.rng, self.ms, self.emitted = np.random.default_rng(0), 0.0, 0
        self.is_drafted: list[bool] = []

    def run(self, num_steps: int, num_requests: int, unread: int = 0) -> list[bool]:
        """Whether these steps drafted."""
        verified, ms = trees([[]] * num_requests), 0.0
        for _ in range(num_steps):
            sizes = verified.num_nodes.tolist()
            rest = self.rng.random(num_requests)
            accepted = [sum(u < v for v in self.values[: n - 1]) for u, n in zip(rest, sizes, strict=True)]
            verdicts = [Verdict(tuple(range(n + 1)), 0, False) for n in accepted]
            emitted = [[*range(1, n + 1), 99] for n in accepted]
            pass_ms = 100.0 + 4 * sum(sizes)
            self.control.learn(VerifiedStep(verified, verdicts, Scores(torch.zeros(0)), emitted), ms, pass_ms)
            self.ms, self.emitted = self.ms + ms + pass_ms, self.emitted + num_requests + sum(accepted)
            is_drafting, verified, ms = (
                self.control.choose(num_requests, 0, 64, unread),
                trees([[]] * num_requests),
                0.0,
            )
            if is_drafting:
                values = self.values[: self.control.current.max_nodes - 1]
                ms = self.draft_ms * num_requests * len(values) / len(self.values) + 0.3 * unread
                verified = self.control.trim(trees([values] * num_requests))
            self.is_drafted.append(is_drafting)
        return self.is_drafted[-num_steps:]

    def gain(self, num_requests: int) -> float:
        """Times plain decoding, over all steps so far."""
        return self.emitted / self.ms * (100 + 4 * num_requests) / num_requests


def test_free_tokens_are_all_verified_and_expensive_ones_are_not() -> None:
    batch = trees([[0.9, 0.5, 0.2], [0.4, 0.2, 0.1]])
    assert learned(50, 0.01, 2).trim(batch).num_nodes.tolist() == [4, 4]
    assert learned(1, 20, 2).trim(batch).num_nodes.tolist() == [1, 1]


def test_the_most_valuable_nodes_stay_whosever_they_are() -> None:
    kept = learned(20, 2, 2).trim(trees([[0.95, 0.9, 0.85], [0.05, 0.04, 0.03]]))
    assert kept.num_nodes.tolist() == [4, 1]


def test_values_that_rise_along_a_path_keep_it_whole() -> None:
    kept = learned(20, 3, 1).trim(trees([[0.3, 0.9, 0.9]]))
    assert kept.trees[0].parent_list == list(range(-1, kept.trees[0].num_nodes - 1))


def test_requests_that_left_since_they_were_drafted_for_leave_what_is_learned_unchanged() -> None:
    control = learned(50, 0.01, 3)
    kept = control.trim(trees([[0.9, 0.8]] * 3)).select_rows([2])
    control.learn(VerifiedStep(kept, [Verdict((0, 1), 5, False)], Scores(torch.zeros(0)), [[1, 5]]), 1.0, None)


def test_a_full_batch_whose_drafts_lose_runs_plain_and_tries_rarely() -> None:
    server = Server(20.0, [0.6, 0.3, 0.1])  # A draft for sixteen takes longer than two passes.
    server.run(1000, 16)
    assert server.gain(16) > 0.97
    assert sum(server.is_drafted[200:]) <= 6


def test_what_small_batches_taught_keeps_a_full_one_from_drafting() -> None:
    server = Server(20.0, [0.8, 0.6, 0.5, 0.4])
    assert all(server.run(30, 1)[-20:])
    server.run(30, 2)
    assert sum(server.run(60, 16)) <= 15  # One node is nearly worth it: .97 of plain.
    assert sum(server.run(60, 1)) > 40


def test_cheap_drafts_that_win_are_made_in_a_full_batch() -> None:
    server = Server(0.5, [0.8, 0.5, 0.2])
    assert all(server.run(60, 16)[-40:])
    assert server.gain(16) > 1.15


def test_better_texts_than_the_first_ones_are_found() -> None:
    server = Server(0.5, [0.2, 0.05])
    server.run(30, 16)
    server.values = [0.9, 0.85, 0.8]
    assert False in server.run(100, 16)
    assert all(server.run(60, 16)[-20:])


def test_a_long_unread_text_is_counted_over_the_steps_that_it_serves() -> None:
    short, long = Server(5.0, [0.7, 0.5]), Server(5.0, [0.7, 0.5])
    assert all(short.run(40, 1)[-20:])
    assert not all(long.run(40, 1, unread=20000)[-20:])


@pytest.mark.parametrize("is_flat", [True, False])
def test_sampled_trees_are_left_alone(is_flat: bool) -> None:
    batch = TreeBatch(torch.tensor([[0, 1]]), torch.tensor([[-1, 0]]), torch.full((1, 2), 0.5), torch.tensor([[-1, 0]]))
    control = Control(pass_ms={1: 1.0, 2: 9.0})
    control.begin(CallFacts("drafter", is_flat=is_flat))
    control.choose(1, 0)
    assert control.trim(batch) is batch
