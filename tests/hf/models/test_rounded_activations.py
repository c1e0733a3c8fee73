"""Quantised layers that round their activations, and those with quantised weights alone."""

import pytest
import torch
from helpers.tiny import tiny_llama
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from treespec.hf.introspect import model_facts
from treespec.hf.models.rounded_activations import rounds_activations


class QuantisedWeight(nn.Parameter):
    """A weight whose type says that it is quantised."""


class RoundedActivations(nn.Linear):
    """8 bits and a scale for every token."""

    def forward(self, input):
        scale = input.abs().amax(-1, keepdim=True) / 127
        return super().forward((input / scale).round() * scale)


class Failing(nn.Linear):
    def forward(self, input):
        raise RuntimeError("no kernel for this shape")


def rounds(change, dtype=torch.float32):
    """Whether a tiny model rounds activations after `change` got its first linear layer."""
    model = tiny_llama(hidden_size=64, intermediate_size=128).to(dtype)
    change(model.model.layers[0].mlp.gate_proj)
    return rounds_activations(model_facts(model))


def quantised(kind):
    def change(layer):
        layer.__class__ = kind
        layer.weight = QuantisedWeight(layer.weight.data)

    return change


def shard(layer):
    mesh = init_device_mesh("cpu", (1,))
    layer.weight = nn.Parameter(distribute_tensor(layer.weight.data, mesh, [Shard(0)]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_a_quantised_layer_returns_decides(dtype):
    """One that cannot be asked counts as rounding."""
    assert not rounds(lambda layer: None, dtype)
    assert not rounds(quantised(nn.Linear), dtype)
    assert rounds(quantised(RoundedActivations), dtype)
    assert rounds(quantised(Failing), dtype)


def test_sharded_weights_are_not_quantised(tmp_path):
    distributed.init_process_group("gloo", f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        assert not rounds(shard)
    finally:
        distributed.destroy_process_group()


CONFIGS = {
    "Int8WeightOnlyConfig": False,
    "IntxWeightOnlyConfig": False,
    "Float8WeightOnlyConfig": False,
    "Int8DynamicActivationInt8WeightConfig": True,
    "Int8DynamicActivationIntxWeightConfig": True,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGS)
def test_torchao(name):
    quantization = pytest.importorskip("torchao.quantization")
    model = tiny_llama(hidden_size=64, intermediate_size=128)
    quantization.quantize_(model, getattr(quantization, name)())
    assert rounds_activations(model_facts(model)) == CONFIGS[name]
