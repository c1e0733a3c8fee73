"""Packed linear layers: those of `optimize` by one kernel, without a measurement (test_optimized_model.py)."""

import pytest
import torch
from helpers.tiny import prompt, tiny_llama
from torch import nn

from treespec import TreespecError
from treespec.cpu import prepack_linears
from treespec.cpu.linear_kernels import FastForward


def test_other_layers_and_packed_ones_stay_as_they_are():
    class Own(nn.Linear):
        pass

    mixed = nn.Sequential(nn.Linear(4, 4), Own(4, 4), nn.Linear(4, 4).double(), nn.Conv1d(4, 4, 1))
    with prepack_linears(mixed):
        assert [isinstance(vars(layer).get("forward"), FastForward) for layer in mixed] == [True, False, False, False]
        with pytest.raises(TreespecError, match="no float32"):
            prepack_linears(mixed)


@torch.no_grad()
def test_a_model_generates_the_same():
    model, ids = tiny_llama(), prompt()
    plain = model(ids).logits
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)
    with prepack_linears(model):
        assert isinstance(vars(model.lm_head)["forward"], FastForward)
        assert (model(ids).logits - plain).abs().max() < 1e-4
        assert model.generate(ids, max_new_tokens=12, do_sample=False).equal(expected)
    assert not any("forward" in vars(module) for module in model.modules())
