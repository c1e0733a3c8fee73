"""Draft heads' files and layers: all that can be wrong with a checkpoint, rotary scalings, training's unrolling."""

import json
import shutil

import pytest
import torch
from eagle_files import SAFEAILAB, SPECULATORS, PlainEagle, random_tensors, shape, write
from safetensors.torch import load_file, save_file
from tiny import tiny_llama
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from treespec import from_config, load_drafter
from treespec.errors import CheckpointError, ConfigError
from treespec.heads.build import build_head
from treespec.heads.checkpoint import read_checkpoint
from treespec.heads.eagle3 import unroll
from treespec.heads.export import save_head
from treespec.heads.rotary import Rotary, rope_settings, rotate
from treespec.hf.heads import load_head

MADE = shape(hidden=32)


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=8)


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_layer(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    edit_config(folder, transformer_layer_config=config["transformer_layer_config"] | changes)


def edit_tensors(folder, **changes):
    """Tensors by name, dots written as two underscores; None takes one away."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def truncate(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def pickle(folder):
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()


def overwrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


D2T = random_tensors(MADE)["d2t"]
NAN = torch.full((32,), torch.nan)
WRONG = {
    "truncated": (truncate, "truncated or no safetensors"),
    "not safetensors": (overwrite("model.safetensors", b"what a proxy says"), "truncated or no safetensors"),
    "pickled": (pickle, r"pytorch_model\.bin\), which can run code and are not opened"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"found none"),
    "no configuration": (lambda f: (f / "config.json").unlink(), "there is no .*config.json"),
    "damaged configuration": (overwrite("config.json", b"{"), "no JSON"),
    "a list": (overwrite("config.json", b"[]"), "must hold a JSON object, got list"),
    "twice": (lambda f: shutil.copy(f / "model.safetensors", f / "more.safetensors"), "another file of the folder"),
    "nan": (lambda f: edit_tensors(f, norm__weight=NAN), "NaN or infinity in norm.weight"),
    "missing tensors": (lambda f: edit_tensors(f, fc__weight=None, norm__weight=None), r"missing: fc\.weight, norm"),
    "half a projection": (lambda f: edit_tensors(f, layers__0__self_attn__k_proj__weight=None), r"missing: .*k_proj"),
    "unknown tensors": (lambda f: edit_tensors(f, medusa__0__weight=torch.ones(2)), r"unknown: medusa\.0\.weight"),
    "another shape": (
        lambda f: edit_tensors(f, lm_head__weight=torch.ones(39, 32)),
        r"lm_head\.weight expected \[40, 32\], got \[39, 32\]",
    ),
    "other sizes": (lambda f: edit_layer(f, intermediate_size=48), r"expected \[48, 32\], got \[40, 32\]"),
    "no size": (lambda f: edit_layer(f, hidden_size=None), "positive int hidden_size, got None"),
    "a size that is no int": (lambda f: edit_config(f, draft_vocab_size="40"), "draft_vocab_size, got '40'"),
    "uneven heads": (lambda f: edit_layer(f, num_key_value_heads=3), "key heads that divide the heads"),
    "epsilon": (lambda f: edit_layer(f, rms_norm_eps="small"), "rms_norm_eps"),
    "no layer": (lambda f: edit_config(f, transformer_layer_config=[]), "must be an object, got list"),
    "another speculator": (lambda f: edit_config(f, speculators_model_type="mlp"), "holds a 'mlp' speculator"),
    "another activation": (lambda f: edit_layer(f, hidden_act="gelu"), "'gelu' is not read"),
    "another rope": (lambda f: edit_layer(f, rope_scaling={"rope_type": "longrope"}), "'longrope' is not read"),
    "rope without factor": (lambda f: edit_layer(f, rope_scaling={"rope_type": "linear"}), "lack 'factor'"),
    "rope of layers": (lambda f: edit_layer(f, rope_parameters={"full_attention": {}}), "one flat object"),
    "partial rope": (lambda f: edit_layer(f, partial_rotary_factor=0.5), "a part of each head"),
    "mixed layers": (lambda f: edit_layer(f, layer_types=["full_attention", "sliding_attention"]), "several"),
    "no d2t": (lambda f: edit_tensors(f, d2t=None), "lacks d2t"),
    "d2t of another size": (lambda f: edit_tensors(f, d2t=D2T[1:]), r"d2t must be int64 \[40\]"),
    "d2t beyond the vocabulary": (lambda f: edit_tensors(f, d2t=D2T + 30), r"different ids in \[0, 64\)"),
    "d2t that maps two to one": (lambda f: edit_tensors(f, d2t=-torch.arange(40)), "40 different ids"),
    "t2d of other ids": (lambda f: edit_tensors(f, t2d=torch.ones(64, dtype=torch.bool)), "t2d must be bool"),
    "embedding of another size": (
        lambda f: edit_tensors(f, embed_tokens__weight=torch.ones(64, 16)),
        r"embed_tokens\.weight expected \[64, 32\], got \[64, 16\]",
    ),
    "another target's size": (
        lambda f: edit_config(f, target_hidden_size=48),
        "hidden states of size 48, LlamaForCausalLM has 32",
    ),
    "layers that are none": (lambda f: edit_config(f, eagle_aux_hidden_state_layer_ids=["2"]), "list of layer numbers"),
    "layers of a deeper model": (
        lambda f: edit_config(f, eagle_aux_hidden_state_layer_ids=[2, 8, 20]),
        r"indices \[2, 8, 20\] for a model of 8 layers",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_checkpoint_says_what_is_wrong(tmp_path, target, name):
    spoil, message = WRONG[name]
    write(tmp_path, MADE, random_tensors(MADE), SPECULATORS)
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_drafter(tmp_path, target)


def test_a_head_of_another_model_is_refused(tmp_path, target):
    write(tmp_path, MADE, random_tensors(MADE), SAFEAILAB)
    with pytest.raises(CheckpointError, match=r"vocabulary of 64 tokens, LlamaForCausalLM has 72.*another model"):
        load_drafter(tmp_path, tiny_llama(72))
    with pytest.raises(CheckpointError, match=r"embedding is 48 wide where the head is 32"):
        load_drafter(tmp_path, tiny_llama(hidden_size=48))
    own = shape(hidden=24, extras=("embedding",))
    write(tmp_path, own, random_tensors(own), SAFEAILAB)
    with pytest.raises(CheckpointError, match=r"hidden states of size 32, LlamaForCausalLM has 48"):
        load_drafter(tmp_path, tiny_llama(hidden_size=48))
    with pytest.raises(CheckpointError, match="there is no folder /no/where"):
        load_drafter("/no/where", target)
    with pytest.raises(ConfigError, match="the target model"):
        load_drafter(tmp_path, "target")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="give hidden_layers="):
        load_drafter(tmp_path, target, hidden_layers=(1, 2))


def test_which_hidden_states_are_fused(tmp_path, target):
    """Defaults; the speculators library counts layers' inputs, SpecForge's `eagle_config` their outputs."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}
    expected = {(2, 4, 5): {}, (1, 3, 6): ids, (2, 4, 7): {"eagle_config": ids}}
    for layers, keys in expected.items():
        write(tmp_path, MADE | {"flags": keys}, random_tensors(MADE), SAFEAILAB)
        assert load_drafter(tmp_path, target).hidden_layers == layers
    assert load_drafter(tmp_path, target, hidden_layers=(0, 1, -1)).hidden_layers == (0, 1, -1)


def test_names_with_a_prefix_and_computed_tensors_are_read(tmp_path, target):
    tensors = random_tensors(MADE)
    sglang = {name if name in ("d2t", "t2d", "lm_head.weight") else f"model.{name}": t for name, t in tensors.items()}
    sglang["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    head = load_head(write(tmp_path / "a", MADE, sglang, SPECULATORS), target)
    other = load_head(write(tmp_path / "b", MADE, tensors, SAFEAILAB), target)
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_the_head_takes_the_targets_dtype_and_leaves_random_states_alone(tmp_path):
    half = tiny_llama(num_layers=8).to(torch.bfloat16)
    write(tmp_path, MADE, random_tensors(MADE), SPECULATORS)
    state = torch.get_rng_state()
    head = load_head(tmp_path, half)
    assert torch.equal(torch.get_rng_state(), state)
    assert {p.dtype for p in head.parameters()} == {torch.bfloat16} == {head.embedding.dtype}
    assert all(p.requires_grad for p in head.parameters())


@pytest.mark.parametrize("name", ["plain", "everything", "rows of the target's head"])
def test_saved_heads_hold_the_same_tensors(tmp_path, target, name):
    made = {
        "plain": MADE,
        "everything": shape(
            hidden=32,
            layers=2,
            extras=("head_norms", "biases", "embedding"),
            flags={"fc_norm": True, "norm_before_residual": True, "norm_output": True, "norm_before_fc": True},
            llama={"layer_types": ["sliding_attention"] * 2, "sliding_window": 5},
        ),
        "rows of the target's head": MADE,
    }[name]
    tensors = random_tensors(made)
    head = load_head(write(tmp_path / "a", made, tensors, SPECULATORS), target)
    has_lm_head = not name.startswith("rows")
    if not has_lm_head:
        head.lm_head.weight.data = tensors["lm_head.weight"] = target.lm_head.weight.data[head.target_ids]
    save_head(head, (1, 4, 6), tmp_path / "b", "some/model", has_lm_head, "embed_tokens.weight" in tensors)
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert saved.keys() == tensors.keys() - (set() if has_lm_head else {"lm_head.weight"})
    again = load_drafter(tmp_path / "b", target)
    assert again.hidden_layers == (1, 4, 6)
    assert again.head.config == head.config.__class__(**vars(head.config) | {"hidden_layers": (1, 4, 6)})
    for key, tensor in again.head.state_dict().items():
        assert torch.equal(tensor, head.state_dict()[key])


def test_rows_of_the_targets_head_need_a_target_that_has_them(tmp_path):
    tensors = random_tensors(MADE)
    folder = write(tmp_path, MADE | {"flags": {"lm_head_from_target": True}}, tensors, SPECULATORS)
    edit_tensors(folder, lm_head__weight=None)
    with pytest.raises(CheckpointError, match=r"rows of the target's, \[64, 32\]; got None"):
        build_head(read_checkpoint(folder), torch.ones(64, 32))


def test_unrolling_is_drafting_on_the_heads_own_features(tmp_path, target):
    made = shape(hidden=32, layers=2, flags={"norm_output": True})
    tensors = random_tensors(made)
    head = load_head(write(tmp_path, made, tensors, SPECULATORS), target)
    plain = PlainEagle(made, tensors, target.get_input_embeddings().weight)
    generator = torch.Generator().manual_seed(1)
    states, text = torch.randn(1, 7, 96, generator=generator), torch.randint(0, 64, (8,), generator=generator).tolist()
    steps = unroll(head, torch.tensor([text[1:]]), head.fuse(states), 3)
    assert [list(step.shape) for step in steps] == [[1, 7, 40], [1, 6, 40], [1, 5, 40]]
    for i, step in enumerate(steps):
        for t in range(step.shape[1]):
            expected = plain.logits(states[0, : t + 1], text[: t + 2], text[t + 2 : t + 2 + i])
            torch.testing.assert_close(step[0, t].double(), expected[head.target_ids], atol=1e-4, rtol=1e-4)
    sum(step.sum() for step in steps).backward()
    assert all(parameter.grad is not None for parameter in head.parameters())


ROPES = [
    {"rope_type": "default", "rope_theta": 500000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024},
    {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
]


@pytest.mark.parametrize("settings", ROPES, ids=lambda settings: f"{settings['rope_type']}-{len(settings)}")
def test_rotary_frequencies_are_those_of_transformers(settings):
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, max_position_embeddings=4096, rope_parameters=settings
    )
    rotary = Rotary(32, rope_settings(config.to_dict()), 4096)
    if settings["rope_type"] == "default":
        frequencies, scale = settings["rope_theta"] ** (-torch.arange(0, 32, 2) / 32), 1.0
    else:
        frequencies, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, torch.device("cpu"))
    torch.testing.assert_close(rotary.inv_freq, frequencies)
    heads, positions = torch.randn(1, 3, 2, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 7, 900]])
    angles = positions[0, :, None, None] * frequencies
    turned = torch.complex(*heads.chunk(2, -1)) * torch.polar(torch.full_like(angles, scale), angles)
    expected = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(rotate(heads, rotary(positions, torch.float32)), expected, atol=1e-4, rtol=1e-4)


def test_from_config_takes_a_head(tmp_path, target):
    write(tmp_path, MADE, random_tensors(MADE), SPECULATORS)
    config = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3}
    speculation = from_config(config, target=target, seed=1)
    ids = torch.tensor([[5, 9, 2, 7]])
    plain = target.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(target.generate(ids, max_new_tokens=8, do_sample=False, custom_generate=speculation), plain)
    assert speculation.stats.num_draft_tokens > 0
    with pytest.raises(ConfigError, match="target="):
        from_config(config)
    with pytest.raises(ConfigError, match="'model'"):
        from_config({"method": "eagle3", "num_speculative_tokens": 3}, target=target)
