"""Building heads from files: each error names the problem; dtypes, windows, vLLM's configuration."""

import pytest
import torch
from helpers.checkpoints import pickled
from helpers.dflash_files import AUTHORS, SLIDING, shape
from helpers.tiny import identical, tiny_llama
from helpers.wrong_heads import METHODS, WRONG, WRONG_IDS, every_method, files_of, write
from safetensors.torch import save_file

from treespec import TreeSpeculation, from_config, load_drafter
from treespec.errors import CheckpointError, ConfigError, TreespecWarning
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint
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


two_methods = pytest.mark.parametrize("method", ["eagle3", "dspark"])


@pytest.mark.parametrize("method", ["eagle", "dspark"])
def test_a_head_of_another_model_is_refused(tmp_path, target, method):
    made = METHODS[method]
    write(tmp_path, made)
    with pytest.raises(CheckpointError, match=r"vocabulary of size 64, LlamaForCausalLM has 72.*another model$"):
        load_drafter(tmp_path, tiny_llama(72, num_layers=8))
    if method == "dspark":  # Its files have the rows of its output.
        with pytest.raises(CheckpointError, match=r"size 64, LlamaForCausalLM has 60.*its vocabulary was expanded"):
            load_drafter(tmp_path, tiny_llama(60, num_layers=8))
    with pytest.raises(CheckpointError, match=r"the target's, \[64, 32\]; got \[64, 48\]: it is the head of another"):
        load_drafter(tmp_path, tiny_llama(hidden_size=48))
    with pytest.raises(CheckpointError, match="there is no folder /no/where"):
        load_drafter("/no/where", target)
    with pytest.raises(ConfigError, match="expected a transformers model"):
        load_drafter(tmp_path, "target")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="give hidden_layers="):
        load_drafter(tmp_path, target, hidden_layers=range(len(made["hidden_layers"]) + 1))


NAMES = [(name, name) for name in METHODS] + [("peagle", "eagle3"), ("dflash2", "dflash")]


@pytest.mark.parametrize(("name", "method"), NAMES)
def test_from_config_takes_heads_by_vllms_methods(tmp_path, target, name, method):
    write(tmp_path, METHODS[name])
    config = {"method": method, "model": str(tmp_path), "num_speculative_tokens": 3}
    assert from_config(config, target=target).drafter.head.config.algorithm == name
    other = "dspark" if "dflash" in name else "dflash" if name == "eagle" else "eagle"
    with pytest.raises(ConfigError, match=f"head of method {name!r}, the configuration says {other!r}"):
        from_config(config | {"method": other}, target=target)


def test_what_configurations_of_heads_need(tmp_path, target):
    write(tmp_path, METHODS["peagle"])
    config = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3, "parallel_drafting": True}
    assert identical(target, PROMPT, from_config(config, target=target, seed=1)).num_draft_tokens > 0
    with pytest.raises(ConfigError, match="target="):
        from_config(config)
    with pytest.raises(ConfigError, match="'model'"):
        from_config({"method": "eagle3", "num_speculative_tokens": 3}, target=target)
    with pytest.raises(ConfigError, match=r"parallel_drafting must be True for .*, got False"):
        from_config(config | {"parallel_drafting": False}, target=target)


@every_method
def test_heads_take_the_targets_dtype_and_leave_random_states_alone(tmp_path, method):
    half = tiny_llama(num_layers=8).to(torch.bfloat16)
    write(tmp_path, METHODS[method])
    state = torch.get_rng_state()
    head = load_head(tmp_path, half)
    assert torch.equal(torch.get_rng_state(), state)
    assert {p.dtype for p in head.parameters()} == {torch.bfloat16} == {head.embedding.dtype}
    assert all(p.requires_grad for p in head.parameters())


@two_methods
@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e5m2], ids=str)
def test_tensors_of_another_dtype_are_read(tmp_path, target, method, dtype):
    made = METHODS[method]
    tensors = files_of(made).random_tensors(made)
    write(tmp_path, made)
    tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    head = load_head(tmp_path, target)
    assert {p.dtype for p in head.parameters()} == {torch.float32}
    assert torch.equal(head.fc.weight, tensors["fc.weight"].float())


@two_methods
def test_a_window_beyond_all_texts_is_none(tmp_path, target, method):
    windows = {"layer_types": [SLIDING] * METHODS[method]["layers"], "sliding_window": 10**30}
    write(tmp_path, METHODS[method] | {"llama": windows})
    speculation = TreeSpeculation(load_drafter(tmp_path, target), tree=6)
    assert identical(target, PROMPT, speculation).num_draft_tokens > 0


def test_a_pickle_holds_the_same_tensors(tmp_path):
    expected = read_checkpoint(write(tmp_path, METHODS["eagle3"])).tensors
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read where there are safetensors")
    assert read_checkpoint(tmp_path).tensors.keys() == expected.keys()
    pickled(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"no weights")
    with pytest.warns(TreespecWarning, match=r"pytorch_model\.bin is a pickle: convert it once by .*save_file"):
        found = read_checkpoint(tmp_path).tensors
    assert found.keys() == expected.keys()
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    torch.save(found | {"norm.weight": torch.full((32,), torch.nan)}, tmp_path / "pytorch_model.bin")
    with pytest.warns(TreespecWarning), pytest.raises(CheckpointError, match="NaN or infinity in norm"):
        read_checkpoint(tmp_path)


EMBEDDING = torch.arange(32.0)


@pytest.mark.parametrize(
    "content", [EMBEDDING, {"embedding": EMBEDDING[None], "mask_token_id": 63}], ids=["tensor", "table"]
)
def test_a_mask_embedding_is_read_from_its_own_file(tmp_path, content):
    """As Xiaomi ships it, next to safetensors."""
    write(tmp_path, shape(draft_vocab=64), AUTHORS)
    torch.save(content, tmp_path / "mask_embedding.pt")
    head = build_head(read_checkpoint(tmp_path), torch.zeros(64, 32), torch.zeros(64, 32))
    assert torch.equal(head.state_dict()["mask_embedding"], EMBEDDING)
