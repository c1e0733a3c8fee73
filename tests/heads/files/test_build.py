"""Building heads of every kind from files: each error names the problem; dtypes, windows, vLLM's configuration."""

import pytest
import torch
from helpers.dflash_files import SLIDING
from helpers.tiny import identical, tiny_llama
from helpers.wrong_heads import METHODS, WRONG, WRONG_IDS, every_method, files_of, write
from safetensors.torch import save_file

from treespec import TreeSpeculation, from_config, load_drafter
from treespec.errors import CheckpointError, ConfigError
from treespec.hf.loading.heads import load_head

PROMPT = torch.tensor([[5, 9, 2, 7]])


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=8)


@pytest.mark.parametrize(("made", "spoil", "message"), WRONG, ids=WRONG_IDS)
def test_a_wrong_checkpoint_says_what_is_wrong(tmp_path, target, made, spoil, message):
    spoil(write(tmp_path, made))
    with pytest.raises(CheckpointError, match=message):
        load_drafter(tmp_path, target)


@every_method
def test_a_head_of_another_model_is_refused(tmp_path, target, method):
    made = METHODS[method]
    write(tmp_path, made)
    with pytest.raises(CheckpointError, match=r"vocabulary of size 64, LlamaForCausalLM has 72.*another model$"):
        load_drafter(tmp_path, tiny_llama(72, num_layers=8))
    with pytest.raises(CheckpointError, match=r"the target's, \[64, 32\]; got \[64, 48\]: it is the head of another"):
        load_drafter(tmp_path, tiny_llama(hidden_size=48))
    with pytest.raises(CheckpointError, match="there is no folder /no/where"):
        load_drafter("/no/where", target)
    with pytest.raises(ConfigError, match="expected a transformers model"):
        load_drafter(tmp_path, "target")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="give hidden_layers="):
        load_drafter(tmp_path, target, hidden_layers=range(len(made["hidden_layers"]) + 1))


def test_an_expanded_vocabulary_is_named(tmp_path):
    write(tmp_path, METHODS["eagle3"])
    with pytest.raises(CheckpointError, match=r"size 64, LlamaForCausalLM has 60.*its vocabulary was expanded"):
        load_drafter(tmp_path, tiny_llama(60, num_layers=8))


@every_method
def test_from_config_takes_a_head(tmp_path, target, method):
    write(tmp_path, METHODS[method])
    config = {"method": method, "model": str(tmp_path), "num_speculative_tokens": 3}
    assert identical(target, PROMPT, from_config(config, target=target, seed=1)).num_draft_tokens > 0
    with pytest.raises(ConfigError, match="target="):
        from_config(config)
    with pytest.raises(ConfigError, match="'model'"):
        from_config({"method": method, "num_speculative_tokens": 3}, target=target)
    other = {"dflash": "dspark", "eagle3": "eagle"}.get(method, "peagle" if method == "eagle" else "eagle")
    with pytest.raises(ConfigError, match=f"head of method {method!r}, the configuration says {other!r}"):
        from_config(config | {"method": other}, target=target)


@pytest.mark.parametrize(("method", "name"), [("eagle3", "peagle"), ("dflash", "dflash2")])
def test_vllms_methods_take_kinds_that_vllm_runs_by_them(tmp_path, target, method, name):
    write(tmp_path, METHODS[name])
    config = {"method": method, "model": str(tmp_path), "num_speculative_tokens": 3}
    drafters = [from_config(config, target=target).drafter]
    if method == "eagle3":
        drafters.append(from_config(config | {"parallel_drafting": True}, target=target).drafter)
        with pytest.raises(ConfigError, match=r"parallel_drafting must be True for .*, got False"):
            from_config(config | {"parallel_drafting": False}, target=target)
    assert all(drafter.head.config.algorithm == name for drafter in drafters)


@every_method
def test_heads_take_the_targets_dtype_and_leave_random_states_alone(tmp_path, method):
    half = tiny_llama(num_layers=8).to(torch.bfloat16)
    write(tmp_path, METHODS[method])
    state = torch.get_rng_state()
    head = load_head(tmp_path, half)
    assert torch.equal(torch.get_rng_state(), state)
    assert {p.dtype for p in head.parameters()} == {torch.bfloat16} == {head.embedding.dtype}
    assert all(p.requires_grad for p in head.parameters())


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_tensors_of_another_dtype_are_read(tmp_path, target, method, dtype):
    made = METHODS[method]
    tensors = files_of(made).random_tensors(made)
    write(tmp_path, made)
    tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    head = load_head(tmp_path, target)
    assert {p.dtype for p in head.parameters()} == {torch.float32}
    assert torch.equal(head.fc.weight, tensors["fc.weight"].float())


@every_method
def test_a_window_beyond_all_texts_is_none(tmp_path, target, method):
    windows = {"layer_types": [SLIDING] * METHODS[method]["layers"], "sliding_window": 10**30}
    write(tmp_path, METHODS[method] | {"llama": windows})
    speculation = TreeSpeculation(load_drafter(tmp_path, target), tree=6)
    assert identical(target, PROMPT, speculation).num_draft_tokens > 0
