"""How the worker and the model runner start, and what they say of a step to the parts that draft."""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm.config")

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from treespec.errors import UnsupportedModeError
from treespec.tree import TreeBatch, Verdict
from treespec.vllm import Options, runner, worker
from treespec.vllm.drafts import Draft
from treespec.vllm.heads import ServedHead
from treespec.vllm.runner import TreeRunner
from treespec.vllm.stats import ServingStats

RANKS = SimpleNamespace(is_first_rank=True, broadcast_object=lambda drafts: drafts)
VOCAB = 8


class Pretended:
    """vLLM's runner as far as its caches: ten blocks of 32."""

    def __init__(self, device: str) -> None:
        self.device, self.attn_groups, self._kernel_block_sizes, self._reader = torch.device(device), [], [32], None
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=32))
        self.kv_cache_config = SimpleNamespace(num_blocks=10, kv_cache_groups=[group])
        kinds = {"is_hybrid": False, "use_mla": False}
        self.model_config = SimpleNamespace(get_vocab_size=lambda: VOCAB, seed=0, max_model_len=64, **kinds)
        self.vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=15),
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            cache_config=SimpleNamespace(block_size=32),
            model_config=self.model_config,
        )
        self._tree_options, self.max_model_len = Options(), 64
        self.requests, self._drafts, self.stats = {}, {}, ServingStats()
        self._draft_ms, self._last, self._masks_chains = 0.0, (0.0, set(), 0), False

    def initialize_kv_cache(self, kv_cache_config: Any) -> None: ...


class PretendedWithTrees(TreeRunner, Pretended):
    def __init__(self, device: str) -> None:
        Pretended.__init__(self, device)


def test_on_an_accelerator_sixteen_tokens_are_expected_to_take_hardly_longer_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "get_tp_group", lambda: RANKS)
    costs = {}
    for device in ("cpu", "cuda"):
        made: Any = PretendedWithTrees(device)
        made.initialize_kv_cache(None)
        one, sixteen = map(made._drafting.control._learned.passes.predict, (1, 16))
        costs[device] = sixteen / one
    assert costs["cuda"] < 1.2 < costs["cpu"]


def test_several_groups_of_caches_get_chains_and_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "get_tp_group", lambda: RANKS)
    made: Any = PretendedWithTrees("cpu")
    made.kv_cache_config.kv_cache_groups *= 2
    made.initialize_kv_cache(None)
    assert made._drafts_chains
    assert len(made._scratch) == 0
    made._reader = ServedHead.__new__(ServedHead)
    with pytest.raises(UnsupportedModeError, match=r"2 groups of KV caches .*: leave head out"):
        made.initialize_kv_cache(None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_kernel_block_sizes": [16]}, r"blocks of 32 that the attention kernel splits into \[16\]"),
        ({"attn_groups": [[SimpleNamespace(backend=CPUAttentionBackend)]]}, "attention CPU_ATTN"),
    ],
)
def test_caches_and_kernels_without_segments_are_refused_before_the_first_step(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "get_tp_group", lambda: RANKS)
    made: Any = PretendedWithTrees("cpu")
    vars(made).update(change)
    with pytest.raises(UnsupportedModeError, match=message):
        made.initialize_kv_cache(None)


class StoppedError(Exception):
    """Raised by a check."""


class PretendedWorker(worker.WithTrees):
    backends, runner = (), PretendedWithTrees

    def __init__(self) -> None:
        self.vllm_config, self.device, self.model_runner = SimpleNamespace(), "cpu", None

    def _make_model_runner(self) -> Any:
        return self.runner(self.device)


@pytest.mark.parametrize("check", ["check_classes", "check_config", None])
def test_every_check_comes_before_the_device(check: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(config: Any) -> None:
        raise StoppedError(config)

    started = []
    base = type("Base", (), {"init_device": lambda self: started.append(self)})
    for name in ("check_classes", "check_config"):
        monkeypatch.setattr(worker, name, stop if name == check else lambda config: None)
    made: Any = type("Made", (PretendedWorker, base), {})()
    if check is None:
        made.init_device()
        assert isinstance(made.model_runner, PretendedWithTrees)
    else:
        with pytest.raises(StoppedError) as caught:
            made.init_device()
        assert caught.value.args == (made.vllm_config,)
    assert started == [made] * (check is None)


def test_a_vllm_without_what_is_relied_on_is_named_before_its_modules_are_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "treespec.vllm.worker")
    monkeypatch.delattr("vllm.v1.attention.selector._cached_get_attn_backend")
    with pytest.raises(UnsupportedModeError, match=r"vllm\.v1\.attention\.selector\._cached_get_attn_backend; install"):
        import_module("treespec.vllm.worker")


class Clock:
    """In seconds; it stands still but for `pass_by`."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, ms: float) -> None:
        self.now += 1e-3 * ms


class Served:
    """A runner with a made-up clock, whose drafts of two nodes take 4 ms and whose control notes what it gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.ranks = Clock(), SimpleNamespace(**vars(RANKS))
        monkeypatch.setattr(runner, "perf_counter", self.clock)
        monkeypatch.setattr(runner, "get_tp_group", lambda: self.ranks)
        self.runner: Any = PretendedWithTrees("cpu")
        self.runner.initialize_kv_cache(None)
        self.learned: list[tuple[float, float | None]] = []
        self.chosen: list[tuple[int, int, int, int]] = []
        self.is_drafting = True
        drafting = self.runner._drafting
        drafting._num_cold = 0
        drafting.control.learn = lambda step, draft_ms, other_ms: self.learned.append((draft_ms, other_ms))
        drafting.control.choose = self.choose
        drafting.control.trim = lambda trees: trees
        drafting.propose = self.propose

    def choose(self, *facts: int) -> bool:
        self.chosen.append(facts)
        return self.is_drafting

    def propose(self, rows: Sequence[Any], tables: Any) -> TreeBatch:
        self.clock.pass_by(4)
        return TreeBatch(torch.tensor([[5, 6, 7]] * len(rows)), torch.tensor([[-1, 0, 0]] * len(rows)))

    def step(
        self, lengths: dict[str, int], num_prompt: int = 0, paused: str = "", emits: bool = True
    ) -> list[list[int]]:
        """One that emits a token of each request, which has so many then, and of no paused one; its drafts."""
        count, ends = len(lengths), np.array(list(lengths.values()))
        counts = np.array([1 + num_prompt, *[1] * (count - 1)])
        table = SimpleNamespace(get_numpy_array=lambda: np.arange(4 * count).reshape(count, 4), block_size=32)
        self.runner.input_batch = SimpleNamespace(
            req_ids=list(lengths),
            num_reqs=count,
            num_tokens_no_spec=ends,
            num_computed_tokens_cpu=ends - 1 - counts,
            token_ids_cpu=np.ones((count, 64), dtype=np.int32),
            block_table=[table],
        )
        self.runner._lay_out({}, counts)
        step = self.runner._step
        step.verdicts = [Verdict((0,), 1, False)] * count
        step.logits, step.starts = torch.zeros(count, VOCAB), range(count)
        params = SimpleNamespace(max_tokens=None, structured_outputs=None)
        request = SimpleNamespace(sampling_params=params, output_token_ids=[1])
        self.runner.requests = dict.fromkeys([*lengths, *paused], request)
        return self.runner.propose_draft_token_ids(None, [[1] if emits else []] * count, None, None, None, None)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(monkeypatch)


def test_no_step_keeps_its_logits(served: Served) -> None:
    """Also one that reads a chunk of a prompt: its states wait, and the step with them."""
    for emits in (True, False):
        assert bool(served.step({"a": 9}, 4, emits=emits)[0]) is emits
        assert served.runner._step.logits is None


def test_the_control_learns_all_the_time_between_steps_but_that_of_drafts(served: Served) -> None:
    steps = (
        (0, "ab", 0, True),
        (10, "ab", 0, False),  # After a draft.
        (7, "ab", 0, True),  # After none.
        (9, "bc", 5, True),  # One left, and a prompt was read.
        (8, "bc", 0, True),  # The step before read a prompt.
        (50, "de", 0, True),  # The engine may have been idle.
        (6, "e", 0, True),
    )
    for number, (ms, requests, num_prompt, is_drafting) in enumerate(steps):
        served.clock.pass_by(ms)
        served.is_drafting = is_drafting
        served.step(dict.fromkeys(requests, 9 + number), num_prompt)
    expected = [(0, None), (4, 10), (0, 7), (4, None), (4, None), (4, None), (4, 6)]
    assert served.learned == [pytest.approx(pair) for pair in expected]
    assert served.runner.stats.pass_ms == pytest.approx(23)
    assert served.runner.stats.draft_ms == pytest.approx(24)


def test_the_control_chooses_by_requests_longest_text_room_and_unread_tokens(served: Served) -> None:
    reader = SimpleNamespace(num_unread=lambda length, row: length if row is None else 2)
    served.runner._drafting._reader = reader
    served.step({"a": 20})
    served.step({"a": 21, "b": 62})
    served.step({"b": 63})
    assert served.chosen == [(1, 20, 44, 20), (2, 62, 43, 2 + 62), (1, 63, 0, 2)]


def test_trees_for_which_others_leave_too_few_scratch_blocks_become_chains(served: Served) -> None:
    served.runner._scratch = served.runner._scratch[:1]
    assert served.step({"a": 20}) == [[6, 7]]
    assert served.step({"b": 20}, paused="a") == [[6]]
    assert served.runner.stats.num_cut == 1
    assert served.step({"b": 21}) == [[6, 7]]
    assert served.runner.stats.num_cut == 1


def test_all_ranks_verify_the_drafts_that_the_first_one_has_sent(served: Served) -> None:
    sent = TreeBatch(torch.tensor([[1, 2]]), torch.tensor([[-1, 0]]))
    served.ranks.is_first_rank = False
    asked: list[Callable[..., Any] | None] = []
    served.ranks.broadcast_object = lambda drafts: asked.append(drafts) or {"a": Draft(sent, 0, [1, 2])}
    assert served.step({"a": 20}) == [[2]]
    assert (asked, served.chosen) == ([None], [])
