"""LoRA on CPUs: rows of the base model keep their values when an adapter has the last slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm.config")

from treespec.vllm.cpu_lora import keep_base_rows

layers: Any = pytest.importorskip("vllm.lora.layers")
punica: Any = pytest.importorskip("vllm.lora.punica_wrapper.punica_cpu")

IDS = [7, 5]
"""The ids of the adapters in the slots."""
OWNERS = (0, 5, 7, 0, 5)


def loaded() -> Any:
    wrapper = punica.PunicaWrapperCPU(16, 8, torch.device("cpu"))
    wrapper.update_metadata(layers.LoRAMapping(OWNERS, OWNERS, is_prefill=True), IDS, len(IDS), 20)
    manager = SimpleNamespace(punica_wrapper_mapping={"language": wrapper})
    keep_base_rows(SimpleNamespace(lora_config=object(), lora_manager=SimpleNamespace(_adapter_manager=manager)))
    return wrapper


@pytest.mark.parametrize("layer", ["linear", "logits", "embedding"])
def test_only_rows_of_an_adapter_change(layer: str) -> None:
    torch.manual_seed(0)
    wrapper, x, y = loaded(), torch.randn(5, 6), torch.randn(5, 9)
    down, up = torch.randn(2, 1, 3, 6), torch.randn(2, 1, 9, 3)
    before, shrunk = y.clone(), x
    if layer == "linear":
        wrapper.add_lora_linear(y, x, (down,), (up,), 1.0, (9,))
    elif layer == "logits":
        wrapper.add_lora_logits(y, x, down, up, 1.0)
    else:
        shrunk = torch.randn(5, 3)
        wrapper.add_lora_embedding(y, shrunk, up)
    for row, owner in enumerate(OWNERS):
        if owner == 0:
            torch.testing.assert_close(y[row], before[row], rtol=0, atol=0)
            continue
        slot = IDS.index(owner)
        inner = shrunk[row] if layer == "embedding" else down[slot, 0] @ x[row]
        torch.testing.assert_close(y[row], before[row] + up[slot, 0] @ inner)


def test_nothing_happens_without_adapters() -> None:
    keep_base_rows(SimpleNamespace(lora_config=None))
