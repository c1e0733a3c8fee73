"""Verification of a step, in chains and in trees.

Cases of vLLM's own tests that apply here, with their drafts, targets and parameters: those of `tests/v1/sample/` in
`test_rejection_sampler.py`, `test_min_p_spec_decode.py` and `test_greedy_topk1_invariance.py`.
"""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_rule import ToyRule

from treespec import TokenTree, TreeBatch

pytest.importorskip("vllm.config")

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from treespec.vllm.scores import Outputs
from treespec.vllm.step import StepVerifier
from treespec.vllm.streams import Streams

VOCAB, WRONG, SECOND = 100, 90, 15


def draft(tokens: Sequence[int], has_branches: bool) -> tuple[TokenTree, list[int]]:
    """A chain below token 0, or one with a wrong sibling before every node; and every node's depth."""
    nodes, parents, depths, above = [0], [-1], [0], 0
    for depth, token in enumerate(tokens, 1):
        if has_branches:
            nodes, parents, depths = [*nodes, WRONG], [*parents, above], [*depths, depth]
        nodes, parents, depths = [*nodes, token], [*parents, above], [*depths, depth]
        above = len(nodes) - 1
    return TokenTree(torch.tensor(nodes), torch.tensor(parents)), depths


class Step:
    """A step of several requests: `targets` are the most likely tokens by depth, `SECOND` comes next everywhere."""

    def __init__(
        self, drafts: Sequence[Sequence[int]], has_branches: bool, targets: Sequence[Sequence[int]] | None = None
    ) -> None:
        trees, depths = zip(*(draft(tokens, has_branches) for tokens in drafts), strict=True)
        self.trees = TreeBatch.from_trees(list(trees))
        self.starts = np.cumsum([0, *map(len, depths)])[:-1].tolist()
        self.logits = torch.full((sum(map(len, depths)), VOCAB), -100.0)
        self.logits[:, SECOND] = 99.0
        for start, depth, target in zip(self.starts, depths, targets or [()] * len(depths), strict=True):
            for node, d in enumerate(depth):
                if d < len(target):
                    self.logits[start + node, target[d]] = 100.0

    def run(self, params: Sequence[SamplingParams], outputs: Sequence[list[int]] | None = None, **fields: Any) -> Any:
        """Emitted tokens by request. `fields` are vLLM's of the batch."""
        is_discarded = np.zeros(len(params), dtype=bool)
        asked = Outputs(params, outputs or [[] for _ in params], self.starts, is_discarded)
        verifier = StepVerifier(fields.pop("rule", "auto"), fields.pop("streams", Streams(0)), Sampler())
        verdicts = verifier.verify(self.trees, self.logits, asked, metadata(params, **fields))
        return [
            [*(tree.token(node) for node in verdict.path[1:]), verdict.next_token]
            for tree, verdict in zip(self.trees.trees, verdicts, strict=True)
        ]


def metadata(params: Sequence[SamplingParams], **fields: Any) -> SamplingMetadata:
    """vLLM's sampling metadata for a batch of these requests."""

    def column(name: str) -> torch.Tensor:
        return torch.tensor([float(getattr(param, name)) for param in params])

    top_k = torch.tensor([param.top_k if param.top_k > 0 else VOCAB for param in params])
    penalties = {
        name: column(name[:-3] + "y") for name in (f"{k}_penalties" for k in ("frequency", "presence", "repetition"))
    }
    given = {
        "temperature": column("temperature"),
        "all_greedy": all(param.temperature == 0 for param in params),
        "all_random": all(param.temperature > 0 for param in params),
        "top_p": column("top_p") if any(param.top_p < 1 for param in params) else None,
        "top_k": top_k if (top_k < VOCAB).any() else None,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": not any(param.frequency_penalty for param in params),
        "prompt_token_ids": torch.full((len(params), 1), VOCAB),
        **penalties,
        "output_token_ids": [],
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
    }
    return SamplingMetadata(**{**given, **fields})


def greedy(**values: Any) -> SamplingParams:
    return SamplingParams(temperature=0, **values)


@pytest.mark.parametrize("has_branches", [False, True])
@pytest.mark.parametrize(
    ("drafts", "targets", "expected"),
    [
        ([[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4]]),
        ([[1, 2, 3]], [[1, 5, 3, 4]], [[1, 5]]),
        ([[1, 2], [3]], [[1, 2, 5], [3, 4]], [[1, 2, 5], [3, 4]]),
        ([[1, 2, 3], [4, 5, 6]], [[1, 2, 7, 6], [4, 8, 6, 9]], [[1, 2, 7], [4, 8]]),
        ([[1, 2], [3, 4]], [[1, 5, 6], [3, 4, 7]], [[1, 5], [3, 4, 7]]),
        ([[], [1, 2], []], [[5], [1, 2, 3], [7]], [[5], [1, 2, 3], [7]]),
    ],
)
def test_greedy(drafts: Any, targets: Any, expected: Any, has_branches: bool) -> None:
    assert Step(drafts, has_branches, targets).run([greedy() for _ in drafts]) == expected


def test_frequency_penalties_count_the_draft() -> None:
    step = Step([[1, 1, 1], [], [1, 1, 1]], True, [[1, 1, 1, 1], [7], [1, 1, 1, 1]])
    params = [greedy(frequency_penalty=value) for value in (1.5, 1.5, 0.7)]
    assert step.run(params, [[2], [3], [4]]) == [[1, SECOND], [7], [1, 1, SECOND]]


def test_bad_words_of_requests_that_do_not_follow_each_other() -> None:
    targets = [[1, 2, 3, 4], [1, SECOND, 3, 4], [1, 2, 3, 4]]
    step = Step([[1, 2, 3], [1, SECOND, 3], [1, 2, 3]], True, targets)
    params = [greedy(), greedy(), greedy()]
    for row in (0, 2):
        params[row].bad_words = ["two"]
    found = step.run(params, [[2], [3], [4]], bad_words_token_ids={0: [[2]], 2: [[2]]})
    assert found == [[1, SECOND], [1, SECOND, 3, 4], [1, SECOND]]


def test_bad_words_of_two_tokens_that_begin_in_the_output() -> None:
    step = Step([[1, 2]], True, [[1, 2, 3]])
    params = greedy()
    params.bad_words = ["nine one"]
    assert step.run([params], [[9]], bad_words_token_ids={0: [[9, 1]]}) == [[SECOND]]
    assert step.run([params], [[8]], bad_words_token_ids={0: [[9, 1]]}) == [[1, 2, 3]]
    assert step.run([params], [[9]], bad_words_token_ids={0: [[1, 2]]}) == [[1, SECOND]]


def test_allowed_tokens() -> None:
    mask = torch.zeros(3, VOCAB, dtype=torch.bool)  # True is forbidden.
    for row in range(3):
        mask[row, row : row + 5] = True
    step = Step([[1, 2, 10], [10, 5, 3], [7, 10, 12]], True, [[1, 2, 10, 5], [10, 5, 10, 5], [7, 10, 12, 5]])
    params = [greedy(allowed_token_ids=[SECOND]) for _ in range(3)]
    assert step.run(params, allowed_token_ids_mask=mask) == [[SECOND], [10, SECOND], [7, 10, 12, SECOND]]


@pytest.mark.parametrize(("min_tokens", "expected"), [(1, [1, 2, 3]), (3, [1, SECOND])])
def test_min_tokens_count_the_draft(min_tokens: int, expected: list[int]) -> None:
    params = greedy(min_tokens=min_tokens, stop_token_ids=[2])
    assert Step([[1, 2]], True, [[1, 2, 3]]).run([params]) == [expected]


def test_a_grammar_that_has_come_to_its_end_ends_before_min_tokens() -> None:
    step = Step([[]], False)
    step.logits[:] = -torch.inf
    step.logits[:, 2] = 1.0
    (emitted,) = step.run(
        [greedy(min_tokens=5, stop_token_ids=[2], structured_outputs=StructuredOutputsParams(regex="a"))]
    )
    assert emitted == [2]


def test_a_bias_changes_the_logits_of_its_request_alone() -> None:
    step = Step([[1], [1]], True, [[1, 2], [1, 2]])
    assert step.run([greedy(logit_bias={7: 300.0}), greedy()]) == [[7], [1, 2]]


def test_requests_with_a_seed_are_deterministic_among_others() -> None:
    number, rng = 8, torch.Generator().manual_seed(0)
    step = Step(torch.randint(0, 8, (number, 3), generator=rng).tolist(), True)
    step.logits = torch.randn(step.logits.shape, generator=rng)
    params = [SamplingParams(seed=row if row % 2 == 0 else None) for row in range(number)]
    found = [step.run(params, streams=Streams(k)) for k in range(6)]
    for row in range(0, number, 2):
        assert all(other[row] == found[0][row] for other in found)


class NotingStreams(Streams):
    """Random numbers that note whether they were to be by depth."""

    def uniforms(self, trees: Any, seeds: Any, lengths: Any, is_by_depth: bool = True) -> Any:
        self.is_by_depth = is_by_depth
        return super().uniforms(trees, seeds, lengths, is_by_depth)


@pytest.mark.parametrize(("rule", "is_by_depth"), [("auto", True), ("traversal", True), (ToyRule(), False)])
def test_nodes_of_a_depth_share_a_draw_only_for_rules_with_a_dense_form(rule: Any, is_by_depth: bool) -> None:
    streams = NotingStreams(0)
    Step([[1, 2]], True).run([SamplingParams(seed=0)], rule=rule, streams=streams)
    assert streams.is_by_depth == is_by_depth


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_k": 5}, {"top_p": 0.5}, {"top_p": 0.9}, {"min_p": 0.2}])
def test_filters_of_each_request(filters: dict[str, Any]) -> None:
    rng = torch.Generator().manual_seed(1)
    drafts = torch.randint(0, VOCAB, (40, 3), generator=rng).tolist()
    step = Step(drafts, True)
    step.logits = 3 * torch.randn(step.logits.shape, generator=rng)
    params = [SamplingParams(**(filters if row % 2 else {})) for row in range(40)]
    probs = step.logits.double().softmax(-1)
    order = probs.sort(-1, descending=True)
    sums = order.values.cumsum(-1) - order.values
    is_kept = torch.ones_like(probs, dtype=torch.bool)
    is_kept &= order.indices.argsort(-1) < filters.get("top_k", VOCAB)
    is_kept &= sums.gather(-1, order.indices.argsort(-1)) < filters.get("top_p", 1.0) + 1e-6
    is_kept &= probs >= filters.get("min_p", 0.0) * probs.amax(-1, keepdim=True) * (1 - 1e-6)
    free = 0
    for seed in range(10):
        for row, tokens in enumerate(step.run(params, streams=Streams(seed))):
            is_inside = bool(is_kept[step.starts[row], tokens[0]])
            free += not is_inside
            assert is_inside or row % 2 == 0
    assert free > 0  # Requests without the filter draw what it would forbid.


def test_top_k_of_one_is_greedy_among_greedy_requests() -> None:
    step = Step([[1, 2]] * 3, True, [[1, 2, 3]] * 3)
    params = [greedy(), SamplingParams(top_k=1), SamplingParams(top_k=1, top_p=0.9)]
    assert step.run(params) == [[1, 2, 3]] * 3
