"""RMS norms by the native function: the module's own results, for those that are such norms, undone without a trace."""

import copy

import pytest
import torch
from helpers.tiny import prompt, tiny_llama
from helpers.zoo import build, prompts
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import treespec
from treespec.cpu.native import native_norm
from treespec.cpu.norms import FastNorm, serve_norms

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def native(library):
    return native_norm(library)


def is_served(module):
    return isinstance(vars(module).get("forward"), FastNorm)


@pytest.mark.parametrize("size", [1, 16, 33])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, nn.RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_norms_equal_the_modules_own(native, kind, size, dtype):
    norm = kind(size, eps=1e-5).to(dtype)
    norm.weight.normal_()
    if size > 1:
        norm.weight[0] = 0
    plain = copy.deepcopy(norm)
    serve_norms(norm, native)
    assert is_served(norm)
    given = torch.randn(size), torch.randn(0, size), torch.randn(5, 3, size).transpose(0, 1), torch.zeros(2, size)
    for inputs in (each.to(dtype) for each in given):
        torch.testing.assert_close(norm(inputs), plain(inputs))
        assert norm(inputs).shape == inputs.shape
    assert norm(torch.full((2, size), torch.nan, dtype=dtype)).isnan().all()
    ones = torch.ones(size, dtype=dtype)
    norm.weight.mul_(2)
    assert not norm(ones).allclose(plain(ones))


@torch.no_grad()
def test_bfloat16_is_rounded_where_transformers_rounds_it(native):
    torch.manual_seed(0)
    norm = LlamaRMSNorm(64, eps=1e-5).bfloat16()
    norm.weight.normal_()
    inputs = torch.randn(200, 64).bfloat16()
    is_other = native.run(inputs, norm.weight, 1e-5) != norm(inputs)
    assert is_other.float().mean() < 0.01  # Another order of the squares' sum.


def test_gradients_autocast_and_other_dtypes_run_as_before(native):
    norm = LlamaRMSNorm(8)
    serve_norms(norm, native)
    norm(torch.randn(2, 8)).sum().backward()
    assert norm.weight.grad is not None
    with torch.no_grad():
        assert norm(torch.randn(2, 8).double()).dtype == torch.float64
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert norm(torch.randn(2, 8).bfloat16()).dtype == torch.promote_types(torch.bfloat16, torch.float32)
        with pytest.raises(RuntimeError):
            norm(torch.randn(2, 7))


@torch.no_grad()
def test_other_norms_are_left_alone(native):
    gemma, hooked, zeros = GemmaRMSNorm(8, eps=1e-5), LlamaRMSNorm(8), LlamaRMSNorm(8)
    gemma.weight.normal_()
    hooked.forward = hooked.forward
    zeros.weight.zero_()  # As any norm with such weights.
    others = [gemma, hooked, zeros, LlamaRMSNorm(8).half(), nn.LayerNorm(8, bias=False), nn.LayerNorm(8)]
    others += [nn.RMSNorm(8), nn.RMSNorm((2, 4), eps=1e-5), nn.RMSNorm(8, 1e-5, elementwise_affine=False)]
    for module in others:
        serve_norms(module, native)
        assert not is_served(module), module


def test_models_have_them_while_they_are_optimised():
    model = tiny_llama()
    with treespec.optimize(model):
        served = [module for module in model.modules() if is_served(module)]
        assert len(served) == sum(isinstance(module, LlamaRMSNorm) for module in model.modules())
        again = copy.deepcopy(model)
        zeros = torch.zeros(2, model.config.hidden_size)
        with torch.no_grad():
            assert again.model.norm(zeros).equal(model.model.norm(zeros))
            assert again(prompt()).logits.equal(model(prompt()).logits)
        assert all(vars(module)["forward"]._module is module for module in again.modules() if is_served(module))
        assert any(map(is_served, again.modules()))
    assert not any(map(is_served, model.modules()))


@pytest.mark.parametrize("name", ["bamba", "kimi_linear"])
def test_hybrids_with_gated_norms(name):
    """Mamba-2's is the plain norm where it gets no gate, Kimi Linear's fails without one."""
    model, ids = build(name), prompts(1, 12)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **options)
    with treespec.optimize(model):
        assert torch.equal(model.generate(ids, **options), plain)
