"""Packed linear layers: equal to plain ones up to rounding, undone without a trace, never stale."""

import subprocess
import sys

import pytest
import torch
from helpers.tiny import prompt, tiny_llama
from torch import nn

from treespec import TreespecError
from treespec.cpu import prepack_linears


@pytest.fixture
def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 16), nn.Linear(16, 8, bias=False)).requires_grad_(False)


@pytest.mark.parametrize("shape", [(24,), (0, 24), (1, 24), (2, 5, 24), (2, 3, 7, 24)])
@torch.no_grad()
def test_outputs_equal_plain_layers(layers, shape):
    inputs = torch.randn(shape)
    expected = layers(inputs)
    with prepack_linears(layers):
        assert torch.allclose(layers(inputs), expected, atol=1e-6)


@torch.no_grad()
def test_inputs_may_be_strided(layers):
    inputs = torch.randn(5, 2, 48)[..., ::2].transpose(0, 1)
    expected = layers(inputs)
    with prepack_linears(layers):
        assert torch.allclose(layers(inputs), expected, atol=1e-6)


def test_leaving_the_block_restores_every_layer(layers):
    packed = prepack_linears(layers)
    assert packed.num_layers == 2
    assert all("forward" in vars(layer) for layer in layers)
    packed.restore()
    assert not any("forward" in vars(layer) for layer in layers)


@torch.no_grad()
def test_changed_weights_are_packed_again(layers):
    inputs = torch.randn(3, 24)
    with prepack_linears(layers):
        before = layers(inputs)
        layers[0].weight.mul_(2)
        changed = layers(inputs)
        layers[0].weight = nn.Parameter(torch.randn(16, 24), requires_grad=False)
        replaced = layers(inputs)
    assert not torch.allclose(before, changed)
    assert torch.allclose(layers(inputs), replaced, atol=1e-6)


def test_gradients_still_flow(layers):
    layers.requires_grad_(True)
    with prepack_linears(layers):
        layers(torch.randn(3, 24)).sum().backward()
    assert all(layer.weight.grad is not None for layer in layers)


def test_other_layers_stay_as_they_are():
    class Own(nn.Linear):
        pass

    mixed = nn.Sequential(nn.Linear(4, 4), Own(4, 4), nn.Linear(4, 4).double(), nn.Conv1d(4, 4, 1))
    with prepack_linears(mixed) as packed:
        assert packed.num_layers == 1
        assert prepack_is_refused(mixed)


def prepack_is_refused(model: nn.Module) -> bool:
    """What is packed already is not packed twice."""
    with pytest.raises(TreespecError, match="no float32"):
        prepack_linears(model)
    return True


@torch.no_grad()
def test_a_model_generates_the_same():
    model, ids = tiny_llama(), prompt()
    plain = model(ids).logits
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)
    with prepack_linears(model):
        assert (model(ids).logits - plain).abs().max() < 1e-4
        assert model.generate(ids, max_new_tokens=12, do_sample=False).equal(expected)


@pytest.mark.slow  # Importing takes five seconds.
def test_it_is_there_after_import_treespec():
    """As README's table writes it; in a process of its own, where no test has imported the module."""
    code = "import treespec, torch; treespec.cpu.prepack_linears(torch.nn.Linear(4, 4))"
    subprocess.run([sys.executable, "-c", code], check=True)
