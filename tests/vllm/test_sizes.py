"""Whether a step drafts and how many nodes are verified, on made-up times."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from treespec import TreeBatch, Verdict
from treespec.vllm.methods import FIRST_DRAFTS
from treespec.vllm.sizes import PRIOR_SHARE, TreeSizes
from treespec.vllm.times import TimeModel


def trees(values: list[list[float]]) -> TreeBatch:
    """Chains with these values below their roots."""
    width = len(values[0]) + 1
    tokens = torch.arange(width).expand(len(values), width).contiguous()
    parents = torch.arange(-1, width - 1).expand(len(values), width).contiguous()
    return TreeBatch(tokens, parents, values=torch.tensor([[1.0, *row] for row in values]))


def learned(start: float, request: float, token: float, num_methods: int = 1) -> TreeSizes:
    """Sizes that have seen passes of these times and no draft; the first draft is chosen for."""
    sizes, rng = TreeSizes(num_methods), np.random.default_rng(0)
    for _ in range(200):
        requests = int(rng.integers(1, 9))
        tokens = requests + int(rng.integers(0, 64))
        sizes.observe_pass(requests, tokens, start + request * requests + token * tokens)
    sizes.choose(1, [0] * num_methods)
    return sizes


class Server:
    """Steps of B requests: a pass of n tokens takes 100 + 4 n ms, a draft of method m `draft_ms[m]` B + 0.3 u.

    Every draft is a chain per request with these values, and as many nodes are accepted as they say.
    """

    def __init__(self, draft_ms: list[float], values: list[float]) -> None:
        self.sizes, self.draft_ms, self.values = TreeSizes(len(draft_ms)), draft_ms, values
        self.rng, self.ms, self.emitted = np.random.default_rng(0), 0.0, 0
        self.drafted: list[int | None] = []

    def run(self, num_steps: int, num_requests: int, unread: int = 0) -> list[int | None]:
        """The methods of these steps, None for plain ones; u = `unread` with the last method, else 0."""
        verified = trees([[]] * num_requests)
        for _ in range(num_steps):
            num_tokens = int(verified.num_nodes.sum())
            rest = self.rng.random(num_requests)
            sizes = verified.num_nodes.tolist()
            accepted = [sum(u < v for v in self.values[: n - 1]) for u, n in zip(rest, sizes, strict=True)]
            verdicts = [Verdict(tuple(range(n + 1)), 0, False) for n in accepted]
            ms = 100.0 + 4 * num_tokens
            self.sizes.observe_pass(num_requests, num_tokens, ms)
            self.sizes.update(verified, verdicts)
            counts = [0] * (len(self.draft_ms) - 1) + [unread]
            method = self.sizes.choose(num_requests, counts)
            verified = trees([[]] * num_requests)
            if method is not None:
                draft_ms = self.draft_ms[method] * num_requests + 0.3 * counts[method]
                verified = self.sizes.cut(trees([self.values] * num_requests))
                self.sizes.observe_draft(num_requests, counts[method], draft_ms)
                ms += draft_ms
            self.ms, self.emitted = self.ms + ms, self.emitted + num_requests + sum(accepted)
            self.drafted.append(method)
        return self.drafted[-num_steps:]

    def gain(self, num_requests: int) -> float:
        """Times plain decoding, over all steps so far."""
        return self.emitted / self.ms * (100 + 4 * num_requests) / num_requests


@pytest.mark.parametrize("coefficients", [(50.0, 1.0, 0.5), (5.0, 0.0, 5.0), (20.0, 3.0, 0.0)])
def test_times_are_learned(coefficients: tuple[float, float, float]) -> None:
    model, rng = TimeModel((1, 0, PRIOR_SHARE), (1, 1, PRIOR_SHARE)), np.random.default_rng(1)
    for _ in range(300):
        requests = int(rng.integers(1, 17))
        tokens = requests + int(rng.integers(0, 128))
        model.observe(requests, tokens, ms=float(np.array(coefficients) @ [1, requests, tokens]))
    for requests, tokens in ((1, 1), (1, 16), (8, 64), (16, 144)):
        expected = float(np.array(coefficients) @ [1, requests, tokens])
        assert float(model.predict(requests, tokens)) == pytest.approx(expected, rel=0.1)


def test_free_tokens_are_all_verified_and_expensive_ones_are_not() -> None:
    batch = trees([[0.9, 0.5, 0.2], [0.4, 0.2, 0.1]])
    assert learned(50, 0, 0.01).cut(batch).num_nodes.tolist() == [4, 4]
    assert learned(1, 0, 20).cut(batch).num_nodes.tolist() == [1, 1]


def test_the_most_valuable_nodes_stay_whosever_they_are() -> None:
    kept = learned(20, 0, 6).cut(trees([[0.9, 0.8, 0.7], [0.05, 0.04, 0.03]]))
    assert kept.num_nodes.tolist() == [4, 1]


def test_values_that_rise_along_a_path_keep_it_whole() -> None:
    kept = learned(20, 0, 3).cut(trees([[0.3, 0.9, 0.9]]))
    assert kept.trees[0].parent_list == list(range(-1, kept.trees[0].num_nodes - 1))


def test_values_are_corrected_by_what_became_of_nodes_like_them() -> None:
    sizes, batch = learned(50, 0, 1), trees([[0.9, 0.4]])
    for _ in range(100):
        sizes.update(batch, [Verdict((0, 1), 0, False)])
    method = sizes.methods[0]
    assert method.correct(np.array([0.9, 0.4])) == pytest.approx([1.0, 0.02], abs=0.03)


def test_what_time_and_nodes_must_bring_is_counted_in_the_drafts_values() -> None:
    sizes, batch = learned(50, 0, 0.5), trees([[0.5, 0.5], [0.5, 0.5]])
    for _ in range(3):
        sizes.choose(2, [0])
        sizes.cut(batch)
    sizes.observe_draft(2, 0, 1e-3)
    sizes.choose(2, [0])
    rate = 2 * 2 / (50 + 0.5 * 6)  # Two tokens per request and step.
    assert sizes.prices.ms == pytest.approx(rate / 2, rel=0.02)
    assert sizes.prices.node == pytest.approx(rate * 0.5, rel=0.05)
    sizes.methods[0]._hits = 2 * sizes.methods[0]._predicted
    sizes.choose(2, [0])
    assert sizes.prices.ms == pytest.approx(3 * 2 / (50 + 0.5 * 6) / 2 / 2, rel=0.02)  # All nodes are right.


def test_a_full_batch_whose_drafts_lose_runs_plain_and_tries_rarely() -> None:
    server = Server([20.0], [0.6, 0.3, 0.1])  # A draft for sixteen takes longer than two passes.
    server.run(200, 16)
    drafted = [step for step, method in enumerate(server.drafted) if method is not None]
    assert drafted[:FIRST_DRAFTS] == list(range(FIRST_DRAFTS))
    assert len(drafted) <= FIRST_DRAFTS + 2
    server.run(800, 16)
    assert server.gain(16) > 0.98
    assert sum(method is not None for method in server.drafted[200:]) <= 2


def test_what_small_batches_taught_keeps_a_full_one_from_drafting() -> None:
    server = Server([20.0], [0.8, 0.6, 0.5, 0.4])
    assert None not in server.run(30, 1)[FIRST_DRAFTS:]
    server.run(10, 2)
    assert set(server.run(35, 16)) == {None}
    assert None not in server.run(20, 1)[1:]


def test_cheap_drafts_that_win_are_made_in_a_full_batch() -> None:
    server = Server([0.5], [0.8, 0.5, 0.2])
    assert None not in server.run(50, 16)[FIRST_DRAFTS:]
    assert server.gain(16) > 1.15


def test_of_two_methods_the_cheap_one_serves_full_batches() -> None:
    server = Server([0.5, 20.0], [0.8, 0.5, 0.2])
    server.run(30, 16)
    assert server.run(40, 16).count(1) <= 1
    assert server.run(40, 16).count(0) >= 38


def test_better_texts_than_the_first_ones_are_found() -> None:
    server = Server([0.5], [0.2, 0.05])
    server.run(30, 16)
    server.values = [0.9, 0.85, 0.8]
    assert None in server.run(100, 16)
    assert None not in server.run(20, 16)


def test_a_long_unread_text_is_counted_over_several_steps() -> None:
    short, long = Server([5.0], [0.7, 0.5]), Server([5.0], [0.7, 0.5])
    short.run(20, 1)
    long.run(20, 1)
    assert short.sizes.choose(1, [100]) == 0
    assert long.sizes.choose(1, [100000]) is None


def test_sampled_trees_are_left_alone() -> None:
    batch = TreeBatch(torch.tensor([[0, 1]]), torch.tensor([[-1, 0]]), torch.full((1, 2), 0.5), torch.tensor([[-1, 0]]))
    assert learned(1, 0, 20).cut(batch) is batch
