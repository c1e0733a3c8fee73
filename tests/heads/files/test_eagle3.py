"""EAGLE-3 heads' files, rotary scalings, training's unrolling."""

import pytest
import torch
from helpers.eagle3_files import SAFEAILAB, random_tensors, shape, write
from helpers.head_files import SPECULATORS
from helpers.tiny import tiny_llama
from helpers.wrong_heads import edit_tensors

from treespec import load_drafter
from treespec.errors import CheckpointError
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint
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
