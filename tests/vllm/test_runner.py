"""What the model runner says of itself to the parts that draft."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm.config")

from treespec.errors import UnsupportedModeError
from treespec.vllm import Options, runner
from treespec.vllm.heads import ServedHead
from treespec.vllm.runner import TreeRunner


class Pretended:
    """vLLM's runner as far as its caches: ten blocks of 32."""

    def __init__(self, device: str) -> None:
        self.device, self.attn_groups, self._kernel_block_sizes, self._reader = torch.device(device), [], [32], None
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=32))
        self.kv_cache_config = SimpleNamespace(num_blocks=10, kv_cache_groups=[group])
        kinds = {"is_hybrid": False, "use_mla": False}
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 8, seed=0, max_model_len=64, **kinds)
        self.vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=15),
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            cache_config=SimpleNamespace(block_size=32),
            model_config=self.model_config,
        )
        self._tree_options = Options()

    def initialize_kv_cache(self, kv_cache_config: Any) -> None: ...


class PretendedWithTrees(TreeRunner, Pretended):
    def __init__(self, device: str) -> None:
        Pretended.__init__(self, device)


def test_on_an_accelerator_sixteen_tokens_are_expected_to_take_hardly_longer_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "get_tp_group", lambda: SimpleNamespace(is_first_rank=True))
    costs = {}
    for device in ("cpu", "cuda"):
        made: Any = PretendedWithTrees(device)
        made.initialize_kv_cache(None)
        one, sixteen = made._drafting.control._learned.passes.predict(np.array([1.0, 16.0]))
        costs[device] = sixteen / one
    assert costs["cuda"] < 1.2 < costs["cpu"]


def test_several_groups_of_caches_get_chains_and_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "get_tp_group", lambda: SimpleNamespace(is_first_rank=True))
    made: Any = PretendedWithTrees("cpu")
    made.kv_cache_config.kv_cache_groups *= 2
    made.initialize_kv_cache(None)
    assert made._drafts_chains
    assert len(made._scratch) == 0
    made._reader = ServedHead.__new__(ServedHead)
    with pytest.raises(UnsupportedModeError, match=r"2 groups of KV caches .*: leave head out"):
        made.initialize_kv_cache(None)
