"""`optimize`: the plain model's results by other kernels, undone without a trace."""

import copy
import pickle
import platform

import peft
import pytest
import torch
from helpers.tiny import prompt, tiny_llama
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import treespec
from treespec.cpu import linear_kernels, native
from treespec.cpu.attention import NativeAttention
from treespec.cpu.linear_kernels import NUM_ROWS, PLAIN, FastForward, Packed, Rounded, bfloat16_kernel, exact_kernels
from treespec.cpu.native import Bfloat16Linear, Int8Linear, NativeError, NativeLinear, NativeNorm
from treespec.drafters import SuffixLookup
from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.machine import processor
from treespec.hf.weights import pack_weights

pytestmark = pytest.mark.usefixtures("folder")


def use(layers, kernel):
    choices = dict.fromkeys(NUM_ROWS, "it")
    for layer in layers:
        vars(layer)["forward"] = FastForward(layer, {"it": kernel}, choices)


def kernels(dtype, library):
    return exact_kernels(dtype, library)[0]


@pytest.mark.parametrize("shape", [(24,), (0, 24), (2, 3, 7, 24), (300, 24)])
@pytest.mark.parametrize("name", ["packed", "native"])
@torch.no_grad()
def test_kernels_equal_plain_layers(layers, name, shape, library):
    inputs = torch.randn(shape)
    expected = layers(inputs)
    use(layers, kernels(torch.float32, library)[name])
    outputs = layers(inputs)
    assert outputs.shape == expected.shape
    assert torch.allclose(outputs, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["packed", "native"])
@torch.no_grad()
def test_inputs_may_be_strided_and_weights_may_change(layers, name, library):
    inputs = torch.randn(5, 2, 48)[..., ::2].transpose(0, 1)
    expected = layers(inputs)
    use(layers, kernels(torch.float32, library)[name])
    assert torch.allclose(layers(inputs), expected, atol=1e-6)
    layers[0].weight.mul_(2)
    assert torch.allclose(layers[0](inputs), nn.Linear.forward(layers[0], inputs), atol=1e-6)
    layers[0].weight[1, 1] += 9  # None of the numbers that are looked at, but it raises the version.
    assert torch.allclose(layers[0](inputs), nn.Linear.forward(layers[0], inputs), atol=1e-6)
    layers[0].weight = nn.Parameter(torch.randn(50, 24), requires_grad=False)
    assert torch.allclose(layers[0](inputs), nn.Linear.forward(layers[0], inputs), atol=1e-6)
    changes = (  # Through `.data`, which raises no version.
        lambda data: setattr(layers[0].weight, "data", data + 0.1),
        lambda data: data.add_(torch.randn(50, 24)),
        lambda data: data.zero_(),
    )
    for change in changes:
        change(layers[0].weight.data)
        assert torch.allclose(layers[0](inputs), nn.Linear.forward(layers[0], inputs), atol=1e-6)


def widths():
    """The compiler's flags for every vector width that this processor has."""
    flags, is_x86 = ["-march=native"], platform.machine() == "x86_64"
    flags += ["-march=x86-64"] if is_x86 else []
    has_avx2 = {"avx2", "fma", "bmi2"} <= set(processor().split())
    return flags + (["-march=haswell"] if is_x86 and has_avx2 else [])


@pytest.mark.parametrize("flag", widths())
@torch.no_grad()
def test_every_vector_width_multiplies(flag, library, tmp_path, monkeypatch):
    """Processors with vectors of 128 and 256 bits take other code; inputs of several blocks, rows of several tiles."""
    folder = library  # Compiled already.
    if flag not in native.FLAGS:
        folder = tmp_path
        monkeypatch.setattr(native, "_loaded", {})  # Graphs of other tests go on with the processor's own.
        monkeypatch.setattr(
            native, "FLAGS", ("-O1", *(name for name in native.FLAGS[1:] if "-march" not in name), flag)
        )
    for kind, tolerance in ((NativeLinear, 1e-5), (Int8Linear, 0.02), (Bfloat16Linear, 0.02)):
        dtype = torch.bfloat16 if kind is Bfloat16Linear else torch.float32
        layer, inputs, product = nn.Linear(500, 70).to(dtype), torch.randn(17, 500).to(dtype), kind(folder)
        outputs = product.run(inputs, product.pack(layer.weight), layer.bias, 70)
        assert (outputs - layer(inputs)).abs().max() < tolerance
        single = product.run(inputs[16:], product.pack(layer.weight), layer.bias, 70)
        assert single.equal(outputs[16:])
    norm = LlamaRMSNorm(500)
    assert (NativeNorm(folder).run(inputs.float(), norm.weight, 1e-6) - norm(inputs.float())).abs().max() < 1e-5
    query, key, value = torch.randn(1, 6, 9, 64), torch.randn(1, 2, 300, 64), torch.randn(1, 2, 300, 64)
    attended = NativeAttention(folder).run(query, key, value, None, 0.1)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, scale=0.1, enable_gqa=True)
    assert (attended - expected.transpose(1, 2)).abs().max() < 1e-5


@pytest.mark.parametrize("product", [native.native_linear, native.int8_linear, native.bfloat16_linear])
@pytest.mark.parametrize("size", [24, 500])
@torch.no_grad()
def test_native_rows_do_not_depend_on_their_number(library, product, size):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if product is native.bfloat16_linear else torch.float32
    layers = nn.Sequential(nn.Linear(size, 50), nn.Linear(50, 8, bias=False)).requires_grad_(False).to(dtype)
    inputs = torch.randn(1030, size).to(dtype)  # Three parts.
    use(layers, product(library))
    whole = layers(inputs)
    assert all(layers(inputs[: count + 1])[count].equal(whole[count]) for count in (*range(18), 63, 511, 512, 1029))


@torch.no_grad()
def test_graphs_of_torch_compile_hold_the_native_product(layers, library):
    """As an operator, with the weights as they are at the call; unpacked ones are left to the compiler."""
    torch.compiler.reset()
    operators = []

    def backend(graph, inputs):
        operators.append([node.target for node in graph.graph.nodes if "linear" in str(node.target)])
        return graph.forward

    inputs = torch.randn(3, 24)
    plain = layers(inputs)
    use(layers, native.int8_linear(library))
    compiled = torch.compile(layers, backend=backend, fullgraph=True)
    assert compiled(inputs).equal(plain)
    pack_weights(layers)
    assert compiled(inputs).equal(layers(inputs))
    assert operators[-1] == 2 * [torch.ops.treespec.linear]
    layers[0].weight.mul_(2)
    pack_weights(layers)
    assert compiled(inputs).equal(layers(inputs))
    assert not compiled(inputs).allclose(plain)
    assert len(operators) == 2, "changed weights need no other graph"
    torch.compiler.reset()


@torch.no_grad()
def test_bfloat16_sums_are_float32_and_rounded_to_the_nearest(library):
    torch.manual_seed(0)
    weight, inputs, bias = torch.randn(70, 501), torch.randn(40, 501), torch.randn(70)
    weight, inputs, bias = weight.bfloat16(), inputs.bfloat16(), bias.bfloat16()
    product = native.bfloat16_linear(library)
    outputs = product.run(inputs, product.pack(weight), bias, 70)
    exact = inputs.double() @ weight.double().T + bias.double()
    assert (outputs != exact.bfloat16()).float().mean() < 1e-3
    inputs[0, 0], inputs[1, 0], inputs[2, 0] = torch.nan, torch.inf, -torch.inf
    outputs = product.run(inputs, product.pack(weight.abs()), bias, 70)
    assert outputs[0].isnan().all()
    assert outputs[1].isposinf().all()
    assert outputs[2].isneginf().all()


def test_gradients_autocast_and_other_dtypes_run_as_before(layers):
    class Never(Packed):
        def run(self, inputs, packed, bias, num_outputs):
            raise AssertionError

    use(layers, Never())
    inputs = torch.randn(3, 24)
    layers.requires_grad_(True)
    layers(inputs).sum().backward()
    assert all(layer.weight.grad is not None for layer in layers)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layers(inputs).dtype == torch.bfloat16
    with torch.no_grad(), pytest.raises(AssertionError):
        layers(inputs)


def test_a_model_generates_the_same_and_is_restored():
    model, ids = tiny_llama(), prompt()
    with torch.no_grad():
        expected = model(ids).logits
    plain = model.generate(ids, max_new_tokens=12, do_sample=False)
    speculation = treespec.TreeSpeculation(SuffixLookup(), tree=8)
    treespec.optimize(model)
    with treespec.optimize(model) as second:
        assert all(isinstance(vars(m)["forward"], FastForward) for m in model.modules() if type(m) is nn.Linear)
        with torch.no_grad():
            assert (model(ids).logits - expected).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1)
        assert model.generate(ids, max_new_tokens=12, do_sample=False).equal(plain)
        assert treespec.generate(model, ids, speculation, max_new_tokens=12, do_sample=False).equal(plain)
    assert not any("forward" in vars(m) for m in model.modules())
    second.restore()  # A second time it does nothing.
    with torch.no_grad():
        assert model(ids).logits.equal(expected)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@torch.no_grad()
def test_merged_adapters_are_seen(folder):
    ids, config = prompt(), peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    model = peft.get_peft_model(tiny_llama(), config)
    expected = model(ids).logits
    for change in (lambda: treespec.optimize(model), model.merge_adapter, model.unmerge_adapter):
        change()
        assert (model(ids).logits - expected).abs().max() < 1e-4 * expected.std()


@pytest.mark.parametrize(
    ("first", "option", "later"),
    [
        (torch.float32, None, torch.bfloat16),
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.int8, torch.float16),
        (torch.float32, torch.int8, torch.float32),
        (torch.bfloat16, None, torch.float32),
        (torch.bfloat16, None, torch.float64),
    ],
)
@torch.no_grad()
def test_another_dtype_after_optimize_runs_as_the_plain_model(first, option, later, library):
    model, ids = tiny_llama(hidden_size=128).to(first), prompt()
    plain = copy.deepcopy(model).to(later)
    treespec.optimize(model, dtype=option)
    model(ids)
    model.to(later)
    for module in (model, treespec.restore(model) or model):
        logits, expected = module(ids).logits.float(), plain(ids).logits.float()
        tolerance = {torch.float32: 1e-4, torch.float64: 1e-4}.get(later, 0.05)
        is_own = first == later == torch.float32 and option is not None and module is model
        assert (logits - expected).abs().max() < (0.2 if is_own else tolerance) * expected.std()


@torch.no_grad()
def test_copies_and_pickles_run_as_before_with_weights_of_their_own(monkeypatch):
    times = {PLAIN: dict.fromkeys(NUM_ROWS, 3.0), "packed": dict.fromkeys(NUM_ROWS, 2.0)}
    monkeypatch.setattr("treespec.cpu.kernel_plan.measure", lambda *_: times)
    model, ids = tiny_llama(), prompt()
    treespec.optimize(model)
    expected = model(ids).logits
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin(ids).logits.equal(expected)
        twin.lm_head.weight.zero_()
        assert not twin(ids).logits.any()
        assert model(ids).logits.equal(expected)
        treespec.restore(twin)
        assert not any("forward" in vars(module) for module in twin.modules())
        assert len(pickle.dumps(model)) < 1.3 * len(pickle.dumps(twin)), "packed weights do not travel"


@torch.no_grad()
def test_bfloat16_is_the_user_s_choice_and_leaves_the_head(folder):
    model, ids = tiny_llama(), prompt()
    expected = model(ids).logits
    with treespec.optimize(model, dtype=torch.bfloat16) as optimized:
        logits = model(ids).logits
        head = vars(model.lm_head).get("forward")  # A float32 head runs by the native product where there is one.
        assert head is None or set(head._choices.values()) == {"native"} == set(head._kernels)
        assert isinstance(vars(model.model.layers[0].mlp.up_proj)["forward"], FastForward)
        assert set(optimized.plan.choices.values()) == {"bfloat16"}
        assert vars(model.model.layers[0].mlp.up_proj)["forward"]._kernels["bfloat16"] == Rounded(
            bfloat16_kernel(folder)
        )
    assert logits.dtype == torch.float32
    assert 0 < (logits - expected).abs().max() < 0.1 * expected.std()
    assert model(ids).logits.equal(expected)
    kernel = Packed() if linear_kernels.has_onednn(torch.bfloat16) else bfloat16_kernel(folder)
    assert Rounded(kernel).pack(model.lm_head.weight).dtype == torch.bfloat16


def test_which_kernel_bfloat16_takes(library, monkeypatch):
    """Matrix units, where oneDNN can use them; the native product; without a compiler oneDNN; else an error."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
        found, missing = exact_kernels(torch.bfloat16, library)
    assert set(found) == {"native"}
    assert "oneDNN packs no torch.bfloat16 here" in missing["packed"]
    monkeypatch.setattr(linear_kernels, "has_onednn", lambda dtype: True)
    monkeypatch.setattr(linear_kernels, "processor", lambda: "flags : avx512f amx_bf16")
    assert isinstance(bfloat16_kernel(library), Packed)
    monkeypatch.setattr(linear_kernels, "processor", lambda: "flags : avx512f")
    assert isinstance(bfloat16_kernel(library), Bfloat16Linear)

    def refuse(_):
        raise NativeError("no C++ compiler found")

    monkeypatch.setattr(linear_kernels, "bfloat16_linear", refuse)
    assert isinstance(bfloat16_kernel(library), Packed)
    monkeypatch.setattr(linear_kernels, "has_onednn", lambda dtype: False)
    with pytest.raises(NativeError, match="compiler"):
        bfloat16_kernel(library)


@torch.no_grad()
@pytest.mark.parametrize("num_inputs", [23, 24, 3000])
def test_int8_weights_are_rounded_to_a_scale_per_output_and_inputs_to_one_per_row(library, num_inputs):
    layer, limit = nn.Linear(num_inputs, 50), min(2**15 - 1, (2**31 - 1) // (127 * num_inputs))
    steps = torch.randint(1 - limit, limit, (5, num_inputs))
    steps[:, 0], steps[1] = limit, 0
    inputs = (steps + 0.3 * (steps.abs() < limit)) / 1024
    inputs[1] = 0
    layer.weight[3] = 0
    layer.weight[4] *= 1000
    scales = layer.weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    rounded = (layer.weight / scales).round().double() * scales.double()
    expected = nn.functional.linear(steps.double() / 1024, rounded, layer.bias.double()).float()
    plain = layer(inputs)
    with treespec.optimize(layer, dtype=torch.int8) as optimized:
        outputs = layer(inputs)
        assert set(optimized.plan.choices.values()) == {"int8"}
        damaged = inputs.clone()
        damaged[2, -1] = torch.nan
        found = layer(damaged)
        assert found[2].isnan().all()
        assert found[3:].equal(outputs[3:])
    assert torch.allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(outputs, plain, rtol=1e-5, atol=1e-6)
    assert layer(inputs).equal(plain)


def test_what_optimize_cannot_serve_is_refused(layers):
    with pytest.raises(UnsupportedModelError, match="no nn"):
        treespec.optimize(nn.Conv1d(4, 4, 1))
    for refused in (nn.Linear(4, 4).double(), nn.Linear(4, 4, device="meta")):
        with pytest.raises(UnsupportedModelError, match="no nn"):
            treespec.optimize(refused)
    with pytest.raises(ConfigError, match="a model or a head"):
        treespec.optimize("model")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="dtype"):
        treespec.optimize(layers, dtype=torch.float16)
    with pytest.raises(ConfigError, match="leave dtype out"):
        treespec.optimize(nn.Sequential(nn.Linear(8, 8)).bfloat16(), dtype=torch.int8)
    with pytest.raises(ConfigError, match="compile"):
        treespec.optimize(torch.compile(layers))  # pyright: ignore[reportArgumentType]


def test_a_library_that_does_not_load_is_compiled_again_and_by_the_next_compiler(library, tmp_path, monkeypatch):
    good, *_ = native.find_compilers()
    bad = tmp_path / "bad"
    bad.write_text(f'#!/bin/sh\nfor last; do :; done\ncase "$*" in *-shared*) echo > "$last";; *) {good} "$@";; esac\n')
    bad.chmod(0o755)
    monkeypatch.setenv("CXX", str(bad))
    monkeypatch.setattr(native, "_loaded", {})
    monkeypatch.setattr(native, "FLAGS", ("-O0", *native.FLAGS[1:]))  # Five compilations, for one call.
    calls = []
    compile_ = native._compile
    monkeypatch.setattr(native, "_compile", lambda *args: calls.append(args[0]) or compile_(*args))
    assert NativeLinear(tmp_path / "libraries").run(torch.ones(1, 2), torch.zeros(1), None, 0).shape == (1, 0)
    assert calls[:2] == [str(bad), str(bad)]
    assert str(bad) not in calls[2:]
    num_calls = len(calls)
    NativeNorm(tmp_path / "libraries")
    assert len(calls) == num_calls > 2, "what cannot be loaded is not compiled again"
    monkeypatch.delenv("CXX")
    damaged = native._library(good, tmp_path / "damaged")
    damaged.parent.mkdir()
    damaged.write_text("damaged")
    NativeNorm(damaged.parent)
    assert calls[num_calls:] == [good]


def test_a_missing_compiler_and_one_that_fails_are_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeError, match="no C\\+\\+ compiler"):
        NativeLinear(tmp_path)
    script = tmp_path / "bad"
    script.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(NativeError, match="it is broken"):
        NativeLinear(tmp_path / "made")
