"""Steps that draft nothing: vLLM samples them, and neither the drafter nor the control looks at their requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm.config")

from helpers.control_call import begun
from vllm import SamplingParams

from treespec.policies import Control
from treespec.policies.control.control import LONGEST_WAIT, REPEATED, REST_SHARE
from treespec.protocols import Scores, VerifiedStep
from treespec.tree import TreeBatch, Verdict
from treespec.vllm import Options, runner
from treespec.vllm.drafting import EAGER_STEPS, Drafting
from treespec.vllm.layout import lay_out
from treespec.vllm.runner import TreeRunner
from treespec.vllm.stats import ServingStats

VOCAB = 8
GREEDY = SamplingParams(temperature=0, max_tokens=200)


class Batch:
    """vLLM's batch of texts that are `length` long, each with all but the last token computed."""

    def __init__(self, params: list[SamplingParams], length: int) -> None:
        self.num_reqs, self.req_ids = len(params), [f"r{row}" for row in range(len(params))]
        self.token_ids_cpu = np.arange(100 * len(params)).reshape(len(params), 100) % VOCAB
        self.num_tokens_no_spec = np.full(len(params), length)
        self.num_computed_tokens_cpu = self.num_tokens_no_spec - 1
        self.block_table = [SimpleNamespace(block_size=32, get_numpy_array=lambda: np.zeros((len(params), 4), int))]
        self.generators: dict[int, Any] = {0: object()}
        is_greedy = all(param.temperature == 0 for param in params)
        self.sampling_metadata = SimpleNamespace(all_greedy=is_greedy, max_num_logprobs=None)


class Runner(TreeRunner):
    """The parts of a runner that plain steps meet."""

    def __init__(self, params: list[SamplingParams]) -> None:
        self.input_batch, self._drafts, self._reader, self._draft_ms = Batch(params, 9), {}, None, 0.0
        self.requests = {
            name: SimpleNamespace(sampling_params=own, output_token_ids=[1])
            for name, own in zip(self.input_batch.req_ids, params, strict=True)
        }
        self.discard_request_mask = SimpleNamespace(np=np.zeros(len(params), dtype=bool))
        self.stats, self._last, self.max_model_len = ServingStats(), (0.0, set(), 0), 100
        self.sampler = lambda *args: ("vLLM's", *args)
        self._verifier = SimpleNamespace(verify=lambda trees, *args: [Verdict((0,), 3, True)] * trees.num_rows)
        self._drafting = Drafting(Options(), VOCAB)
        self.counts = np.ones(len(params), dtype=np.int64)

    def step(self, drafted: dict[str, list[int]] | None = None) -> Any:
        counts = self.counts + [len((drafted or {}).get(name, [])) for name in self.input_batch.req_ids]
        self._step = lay_out(self.input_batch, drafted or {}, counts, {}, np.zeros(0, dtype=np.int64))
        metadata = SimpleNamespace(num_draft_tokens=(counts - 1).tolist(), max_spec_len=int(counts.max()) - 1)
        return self._sample(torch.zeros(int(counts.sum()), VOCAB), metadata)


@pytest.mark.parametrize(
    ("params", "drafted", "is_vllms"),
    [
        ([GREEDY, GREEDY], {}, True),
        ([GREEDY, GREEDY], {"r1": [4]}, False),
        ([GREEDY, SamplingParams(temperature=0.5)], {}, False),
        ([GREEDY, SamplingParams(temperature=0, logit_bias={3: 1.0})], {}, False),
    ],
    ids=["plain", "a draft", "a sample", "a bias"],
)
def test_greedy_steps_without_drafts_are_sampled_by_vllm(params: Any, drafted: Any, is_vllms: bool) -> None:
    made = Runner(params)
    found = made.step(drafted)
    if is_vllms:
        assert found[:1] == ("vLLM's",)
        assert made._step.verdicts == ()
        assert "trees" not in vars(made._step)
        assert made._step.trees.tokens.tolist() == [[0], [4]]  # The roots.
        assert made._step.trees.parents.tolist() == made._step.flat.parents.tolist() == [[-1], [-1]]
    else:
        assert found.sampled_token_ids[:, 0].tolist() == [3, 3]
    assert made._step.starts == [0, 1]
    assert made.input_batch.generators == {}  # A CPU's cannot be set back after a chunk, as vLLM would.


def test_a_step_that_rests_looks_at_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Runner([GREEDY] * 3)
    control: Any = made._drafting.control
    monkeypatch.setattr(control, "_decide", lambda *_: (setattr(control, "_num_repeated", REPEATED), (0, "never"))[1])
    ranks = SimpleNamespace(is_first_rank=True, broadcast_object=lambda value: value)
    monkeypatch.setattr(runner, "get_tp_group", lambda: ranks)
    rows, counts = made._served_rows, []
    monkeypatch.setattr(made, "_served_rows", lambda *args: counts.append(len(rows(*args))) or rows(*args))
    for _ in range(EAGER_STEPS + 2 * (REPEATED + 1)):
        made.step()
        assert made.propose_draft_token_ids(None, [[3]] * 3, None, None, None, None) == [[], [], []]
        assert made.take_draft_token_ids() is None
    # The last step of a rest decides, and the first is learned.
    assert len(counts) == EAGER_STEPS + 2 * 2
    assert made.stats.num_verified == 3 * made.stats.num_steps == 3 * (EAGER_STEPS + 2 * (REPEATED + 1))
    assert made.stats.num_draft_tokens == 0


def plain(num_rows: int) -> VerifiedStep:
    roots = torch.zeros(num_rows, 1, dtype=torch.int64)
    return VerifiedStep(TreeBatch(roots, roots - 1), [], Scores(torch.zeros(0)), [[0]] * num_rows)


def test_where_reading_costs_more_than_a_draft_brings_the_control_decides_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = Control(16)
    begun(control, draft_share=0.05, is_flat=True)
    decide, decisions = control._decide, []
    monkeypatch.setattr(control, "_decide", lambda *args: decisions.append(1) or decide(*args))
    for _ in range(400):
        control.learn(plain(16), 0.0, 100.0)
        assert control.rests(16) or not control.choose(16, 200, 50, 100_000)
    assert len(decisions) < 400 // (LONGEST_WAIT // REST_SHARE) + 5
    assert not control.rests(15)  # Other requests are another question.
