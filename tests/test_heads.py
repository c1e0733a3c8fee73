"""EAGLE-3 heads' files, rotary scalings, training's unrolling."""

import pytest
import torch
from eagle_files import SAFEAILAB, PlainEagle, random_tensors, shape, write
from head_files import SPECULATORS
from helpers.tiny import tiny_llama
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from wrong_heads import edit_tensors

from treespec import load_drafter
from treespec.errors import CheckpointError
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint
from treespec.heads.modules.eagle3 import unroll
from treespec.heads.modules.rotary import Rotary, rope_settings, rotate
from treespec.hf.loading.heads import load_head

MADE = shape(hidden=32)


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=8)


def test_hidden_states_of_another_size_are_refused(tmp_path):
    own = shape(hidden=24, extras=("embedding",))
    write(tmp_path, own, random_tensors(own), SAFEAILAB)
    with pytest.raises(CheckpointError, match=r"hidden states of size 32, LlamaForCausalLM has 48"):
        load_drafter(tmp_path, tiny_llama(hidden_size=48))


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
    plain = PlainEagle(made, tensors, target)
    generator = torch.Generator().manual_seed(1)
    states, text = torch.randn(1, 7, 96, generator=generator), torch.randint(0, 64, (8,), generator=generator).tolist()
    steps = [head.lm_head(outputs) for outputs in unroll(head, torch.tensor([text[1:]]), head.fuse(states), 3)]
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
