"""`speed_up`: what it finds, that it changes no token, what it says, and that it can be undone."""

import os
import pickle
import threading
from pathlib import Path

import pytest
import torch
from helpers import mtp_files, zoo
from helpers.tiny import identical, noisy_copy, tiny_llama
from helpers.wrong_heads import EAGLE, write
from transformers import LlamaForCausalLM

import treespec
from treespec.cpu import optimized_model
from treespec.cpu.kernel_plan import KernelPlan
from treespec.cpu.linear_kernels import NUM_ROWS, FastForward, has_onednn
from treespec.cpu.native import NativeError
from treespec.drafters import WarmStart
from treespec.errors import ConfigError, UnsupportedModelError
from treespec.heads import Eagle3
from treespec.heads.mtp.files import read_mtp
from treespec.hf.loading import mtp
from treespec.speedup import kernels, sources

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6]])


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "some-model"
    tiny_llama(num_layers=8).save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder).eval()


@pytest.fixture
def uncompiled(monkeypatch):
    """Kernels that have to be compiled first: an event that lets the compiler end."""
    ready = threading.Event()
    monkeypatch.setattr(kernels, "is_compiled", lambda folder: False)
    monkeypatch.setattr(kernels, "load_library", lambda folder, is_background: ready.wait(60))
    monkeypatch.setattr(kernels, "optimize", lambda model, **_: Optimized("native"))
    yield ready
    ready.set()


class Optimized:
    """A stand-in for an optimised model."""

    def __init__(self, kernel):
        self.plan = KernelPlan(dict.fromkeys(NUM_ROWS, kernel))


def next_to(model, name):
    return Path(model.config.name_or_path) / name


def is_optimized(model):
    return any(isinstance(vars(module).get("forward"), FastForward) for module in model.modules())


@pytest.mark.parametrize("name", ["rwkv", "qwen3_5_text"])
def test_recurrent_models_are_sped_up_and_no_token_changes(name):
    target = zoo.build(name)
    speculation = treespec.speed_up(target)
    identical(target, zoo.prompts(1, 6), speculation, max_new_tokens=8)
    assert "lookups" in str(speculation)
    speculation.restore()


@pytest.mark.parametrize(("where", "rows"), [("head", 3), ("../some-model.eagle3", 1)])
def test_a_head_next_to_the_checkpoint_drafts_and_no_token_changes(model, where, rows):
    write(next_to(model, where), EAGLE)
    speculation = treespec.speed_up(model)
    assert isinstance(speculation.found.drafters[0], Eagle3)
    identical(model, PROMPT.repeat(rows, 1), speculation, times=2, max_new_tokens=20)
    assert "the head in" in str(speculation)
    assert f"{2 * rows * 20} tokens" in str(speculation)


def test_a_model_without_a_folder_takes_no_head_from_the_working_one(tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path / "head", EAGLE).parent)
    found = treespec.speed_up(tiny_llama(num_layers=8)).found
    assert list(found.missing) == ["a trained head"]
    assert len(found.drafters) == 2


def test_heads_that_do_not_fit_and_damaged_ones_are_said_and_left_out(model):
    files = {
        "empty": {"config.json": "{}"},
        "pickled": {
            "config.json": '{"architectures": ["LlamaForCausalLMEagle3"]}',
            "pytorch_model.bin": "abc",
        },
        "assistant": {"config.json": '{"model_type": "gemma4_assistant"}'},
        "dangling": {"config.json": "{}"},
    }
    write(next_to(model, "of another model"), EAGLE | {"target_hidden": 48})
    for name, contents in files.items():
        next_to(model, name).mkdir()
        for file, text in contents.items():
            (next_to(model, name) / file).write_text(text)
    (next_to(model, "dangling") / "model.safetensors").symlink_to(next_to(model, "nothing"))
    speculation = treespec.speed_up(model)
    assert len(speculation.found.drafters) == 2
    heads = {f"the head in {next_to(model, name)}" for name in (*files, "of another model")}
    assert set(speculation.found.missing) == {"a trained head", *heads}
    assert "hidden states of size 48" in " ".join(str(speculation).split())


def test_a_whole_model_next_to_the_checkpoint_is_not_read(model, monkeypatch):
    other = next_to(model, "../some-model-tuned").resolve()
    tiny_llama(num_layers=9).save_pretrained(other)
    monkeypatch.setattr(sources, "load_drafter", lambda folder, target: pytest.fail(f"{folder} is read"))
    found = treespec.speed_up(model).found
    assert "too large for a head" in found.missing[f"the head in {other}"]


def test_mtp_layers_draft_a_part_of_a_large_vocabulary_on_a_cpu(tmp_path, monkeypatch):
    target = mtp_files.write(tmp_path, "qwen3_5").target
    monkeypatch.setattr(sources, "MOST_DRAFTED", 32)
    read = []
    monkeypatch.setattr(mtp, "read_mtp", lambda *args: read.append(args) or read_mtp(*args))
    drafter, *_ = treespec.speed_up(target).found.drafters
    assert drafter.head.target_ids.tolist() == list(range(32))
    assert len(read) == 1, "the files are read once"
    own = list(range(20, 80))
    (tmp_path / "draft_vocab.json").write_text(str(own))
    for most in (32, 64):
        monkeypatch.setattr(sources, "MOST_DRAFTED", most)
        drafter, *_ = treespec.speed_up(target).found.drafters
        assert drafter.head.target_ids.tolist() == own[:most]


def test_a_head_that_was_put_there_comes_before_mtp_layers_and_the_report_names_them(tmp_path):
    (tmp_path / "a-model").mkdir()
    target = mtp_files.write(tmp_path / "a-model", "mimo", num_hidden_layers=8).target
    size = target.config.hidden_size
    for name in ("first", "second"):
        write(tmp_path / "a-model" / name, EAGLE | {"vocab": zoo.VOCAB_SIZE, "hidden": size, "target_hidden": size})
    speculation = treespec.speed_up(target)
    assert speculation.found.names[0] == f"the head in {tmp_path / 'a-model' / 'first'}"
    others = {"the checkpoint's MTP layers": "mtp", f"the head in {tmp_path / 'a-model' / 'second'}": "second"}
    assert set(others) <= set(speculation.found.missing)
    report = " ".join(str(speculation).split())
    for what, source in others.items():
        assert f"{what}: the head in" in report
        assert f"{source}', model) is for this one" in report


@pytest.mark.parametrize("name", ["qwen3_5", "deepseek_v3"])
def test_mtp_layers_of_the_checkpoint_draft(tmp_path, name):
    target = mtp_files.write(tmp_path, name).target
    weights = {name: weight.clone() for name, weight in target.state_dict().items()}
    speculation = treespec.speed_up(target)
    assert speculation.found.names[0] == "the checkpoint's MTP layers"
    identical(target, PROMPT, speculation, max_new_tokens=20)
    kinds = {choice for module in target.modules() for choice in kernels_of(module)}
    assert "int8" not in kinds, "the head's 8 bits are not the target's"
    assert all(weight.equal(weights[name]) for name, weight in target.state_dict().items())


def kernels_of(module):
    forward = vars(module).get("forward")
    return forward._choices.values() if isinstance(forward, FastForward) else ()


def test_warm_lookups_of_another_vocabulary_are_left_out():
    model = tiny_llama()
    model.config.name_or_path = "SmolLM2-135M-Instruct-small"
    speculation = treespec.speed_up(model)
    assert speculation.found.names == ["lookups, which learn as they go"]
    assert "another model" in speculation.found.missing["the head that ships with treespec"]
    identical(model, PROMPT, speculation)


def test_known_heads_are_used_where_they_are_local_or_may_be_fetched(model, monkeypatch, tmp_path):
    folder = str(write(tmp_path / "elsewhere", EAGLE))
    monkeypatch.setattr(sources, "KNOWN_HEADS", {model.config.name_or_path: [folder]})
    monkeypatch.setattr(sources, "try_to_load_from_cache", lambda *_: None)
    found = treespec.speed_up(model).found
    assert "is_download_allowed=True" in found.missing[f"the head {folder}"]
    assert f"the head {folder}" in treespec.speed_up(model, is_download_allowed=True).found.names
    monkeypatch.setattr(sources, "try_to_load_from_cache", lambda *_: "config.json")
    assert f"the head {folder}" in treespec.speed_up(model).found.names


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "/models/smollm2-135m-instruct-float32"])
def test_what_ships_is_found_by_the_beginning_of_the_name(name, monkeypatch):
    model = tiny_llama(vocab_size=WarmStart.shipped("SmolLM2-135M-Instruct").vocab_size)
    model.config.name_or_path = name
    head = object()
    monkeypatch.setattr(sources, "load_drafter", lambda folder, target: head)
    found = sources.find_drafters(model, is_download_allowed=False)
    assert found.names == ["the head that ships with treespec", "lookups, warm from the start"]
    assert found.drafters[0] is head


def test_without_a_head_lookups_draft_by_any_sampling(model):
    speculation = treespec.speed_up(model, seed=3, record_steps=True)
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 0.5}
    first, again = (
        model.generate(PROMPT, **options, custom_generate=treespec.speed_up(model, seed=3)) for _ in range(2)
    )
    assert first.equal(again)
    assert speculation.options.seed == 3
    assert speculation.options.record_steps
    assert "none next to the checkpoint" in speculation.found.missing["a trained head"]
    assert "not called yet" in str(speculation)


def test_layers_are_optimized_and_restored(model, monkeypatch):
    """By the last of several calls too; the fastest kernel is "packed", whatever the machine."""
    if not has_onednn(torch.float32):
        assert "CI" not in os.environ, "PyTorch was built without oneDNN"  # Where all must run, a failure.
        pytest.skip("PyTorch was built without oneDNN")
    monkeypatch.setattr(kernels, "is_compiled", lambda folder: True)  # Missing kernels are compiled at once.
    monkeypatch.setattr(optimized_model, "make_plan", lambda *_: KernelPlan(dict.fromkeys(NUM_ROWS, "packed")))
    plain = model.generate(PROMPT, max_new_tokens=30, do_sample=False)
    several = []
    for _ in range(2):
        several.append(treespec.speed_up(model))
        assert is_optimized(model)
        assert "treespec's for CPUs" in str(several[-1])
    speculation = several[-1]
    assert model.generate(PROMPT, max_new_tokens=30, do_sample=False, custom_generate=speculation).equal(plain)
    for _ in range(2):
        speculation.restore()
        assert not is_optimized(model)
    assert model.generate(PROMPT, max_new_tokens=30, do_sample=False, custom_generate=speculation).equal(plain)


def test_weights_that_change_in_place_are_followed(model):
    """As in roll-outs of reinforcement learning: what was packed is packed again, what drafts may be slower."""
    write(next_to(model, "head"), EAGLE)
    speculation = treespec.speed_up(model)
    options = {"max_new_tokens": 24, "do_sample": False}
    before = model.generate(PROMPT, **options, custom_generate=speculation)
    with torch.no_grad():
        for weight in model.parameters():
            weight.data.add_(0.2 * torch.randn_like(weight))  # It raises no version.
    plain = model.generate(PROMPT, **options)
    assert not plain.equal(before)
    assert model.generate(PROMPT, **options, custom_generate=speculation).equal(plain)
    speculation.restore()
    assert model.generate(PROMPT, **options).equal(plain)


def test_calls_do_not_wait_for_a_compiler(model, uncompiled):
    """One runs, however many models wait for it."""
    treespec.speed_up(noisy_copy(model))
    speculation = treespec.speed_up(model)
    assert sum(thread.name == kernels.COMPILER for thread in threading.enumerate()) == 1
    compiling = speculation._kernels._compiling
    identical(model, PROMPT, speculation, max_new_tokens=8)
    assert "meanwhile" in str(speculation)
    copied = pickle.loads(pickle.dumps(speculation))
    assert copied.found.names == speculation.found.names
    ways = speculation._ways
    uncompiled.set()
    compiling.join()
    identical(model, PROMPT, speculation, max_new_tokens=8)
    assert "treespec's for CPUs (native)" in str(speculation)
    assert speculation._ways is not ways  # Times of calls with the slow layers no longer count.


def refused(*_, **__):
    raise NativeError("no layer of that kind")


def test_why_layers_run_unchanged_is_said(model, monkeypatch):
    monkeypatch.setattr(kernels, "is_compiled", lambda folder: True)
    for name, value, words in (
        ("_free_memory", lambda: 1000, "of free memory"),
        ("MEMORY", Path("/no/such/file"), "on Linux only"),
        ("optimize", refused, "no layer of that kind"),
        ("optimize", lambda model, **_: Optimized("plain"), "the fastest for its layers"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(kernels, name, value)
            speculation = treespec.speed_up(model)
        assert words in " ".join(str(speculation).split())
        assert not is_optimized(model)
    assert "the model's own device" in str(treespec.speed_up(model.to("meta")))
    monkeypatch.setattr(kernels, "load_library", refused)
    kernels._compile()  # In its thread it ends without a traceback.


def test_what_is_refused(model):
    with pytest.raises(ConfigError, match="expected a transformers model"):
        treespec.speed_up("a name")
    with pytest.raises(ConfigError, match="chooses what drafts"):
        treespec.speed_up(model, drafter=model)
    with pytest.raises(TypeError, match="nonsense"):
        treespec.speed_up(model, nonsense=1)
    with pytest.raises(ConfigError, match="is_download_allowed"):
        treespec.speed_up(model, is_download_allowed=1)
    model.config.is_encoder_decoder = True
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        treespec.speed_up(model)


def test_layers_that_a_caller_has_optimised_stay(model):
    """Weights in 8 bits are another model, which is to be decoded."""
    write(next_to(model, "head"), EAGLE)
    try:
        treespec.optimize(model, dtype=torch.int8)
    except NativeError as error:
        if "CI" in os.environ:  # Where all must run, a compiler that is missing is a failure.
            raise
        pytest.skip(str(error))
    kept = [vars(module).get("forward") for module in model.modules()]
    speculation = treespec.speed_up(model)
    identical(model, PROMPT, speculation, max_new_tokens=24)
    assert "those that treespec.optimize gave the model" in str(speculation)
    speculation.restore()
    assert [vars(module).get("forward") for module in model.modules()] == kept
    treespec.restore(model)


def test_a_head_that_is_fast_is_not_packed_again(model):
    """An object for every call would pack the head's weights in every one of them."""
    head = torch.nn.Sequential(torch.nn.Linear(64, 64))
    first = kernels.Kernels(model, [head])
    packed = vars(head[0])["forward"]
    kernels.Kernels(model, [head])
    assert vars(head[0])["forward"] is packed
    first.restore()
    assert "forward" not in vars(head[0])
