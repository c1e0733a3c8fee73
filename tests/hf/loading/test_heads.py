"""Heads' files and their targets: which hidden states are fused, which weights are shared, what a block sees."""

import json

import pytest
import torch
from helpers import dflash_files, eagle3_files
from helpers.dflash_files import AUTHORS, FULL, SLIDING
from helpers.eagle3_files import SAFEAILAB
from helpers.head_files import SPECULATORS
from helpers.tiny import tiny_llama
from helpers.wrong_heads import edit_config, edit_tensors, write

from treespec import load_drafter
from treespec.errors import CheckpointError
from treespec.heads.dflash.module import Span
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint
from treespec.hf.loading.heads import load_head

DSPARK = dflash_files.dspark()


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=8)


def test_which_hidden_states_dflash_fuses(tmp_path, target):
    """z-lab counts layers' outputs from zero and spreads them by default; speculators names hidden states."""
    whole = dflash_files.shape(draft_vocab=64)
    write(tmp_path, whole, AUTHORS)
    own = {"mask_token_id": 63}
    given = {
        (1, 2): {},
        (4, 6): {"dflash_config": own | {"target_layer_ids": [3, 5]}},
        (2, 6): {"dflash_config": own, "num_target_layers": 8},
    }
    for layers, keys in given.items():
        edit_config(tmp_path, **keys)
        assert load_drafter(tmp_path, target).hidden_layers == layers
    assert load_drafter(tmp_path, target, hidden_layers=(0, -1)).hidden_layers == (0, -1)
    edit_config(tmp_path, dflash_config=own, num_target_layers=None)
    with pytest.raises(CheckpointError, match="num_target_layers"):
        load_drafter(tmp_path, target)
    write(tmp_path, DSPARK)
    assert load_drafter(tmp_path, target).hidden_layers == (1, 2)


def test_what_a_block_sees_is_read(tmp_path, target):
    mixed = {"layer_types": [FULL, SLIDING], "sliding_window": 5}
    made = dflash_files.shape(draft_vocab=64, llama=mixed)
    expected = {
        (AUTHORS, ()): (Span(), Span(5, True)),
        (AUTHORS, ("causal",)): (Span(None, True), Span(5, True)),
        (SPECULATORS, ()): (Span(), Span(5, True)),
        (SPECULATORS, ("non-causal",)): (Span(), Span(5)),
    }
    for (format_name, words), spans in expected.items():
        write(tmp_path, made, format_name)
        if "causal" in words:
            own = json.loads((tmp_path / "config.json").read_text())["dflash_config"]
            edit_config(tmp_path, dflash_config=own | {"causal": True})
        if "non-causal" in words:
            edit_config(tmp_path, sliding_window_non_causal=True)
        assert load_head(tmp_path, target).config.spans == spans


def test_a_whole_vocabulary_shares_the_targets_own_weights(tmp_path, target):
    made = dflash_files.shape(draft_vocab=64)
    head = load_head(write(tmp_path, made, AUTHORS), target)
    assert head.lm_head.weight.data_ptr() == target.lm_head.weight.data_ptr()
    assert head.embedding.data_ptr() == target.get_input_embeddings().weight.data_ptr()


def test_a_confidence_head_in_the_file_is_ignored(tmp_path, target):
    made = dflash_files.dspark(extras=("head_norms", "confidence"))
    assert "confidence_head.proj.weight" in dflash_files.random_tensors(made)
    head = load_head(write(tmp_path, made), target)
    assert not any("confidence" in name for name in head.state_dict())


EAGLE3 = eagle3_files.shape(hidden=32)


def test_hidden_states_of_another_size_are_refused(tmp_path):
    own = eagle3_files.shape(hidden=24, extras=("embedding",))
    write(tmp_path, own, SAFEAILAB)
    with pytest.raises(CheckpointError, match=r"hidden states of size 32, LlamaForCausalLM has 48"):
        load_drafter(tmp_path, tiny_llama(hidden_size=48))


def test_which_hidden_states_eagle_3_fuses(tmp_path, target):
    """Defaults; the speculators library counts layers' inputs, SpecForge's `eagle_config` their outputs."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}
    expected = {(2, 4, 5): {}, (1, 3, 6): ids, (2, 4, 7): {"eagle_config": ids}}
    for layers, keys in expected.items():
        write(tmp_path, EAGLE3 | {"flags": keys}, SAFEAILAB)
        assert load_drafter(tmp_path, target).hidden_layers == layers
    assert load_drafter(tmp_path, target, hidden_layers=(0, 1, -1)).hidden_layers == (0, 1, -1)


def test_names_with_a_prefix_and_computed_tensors_are_read(tmp_path, target):
    tensors = eagle3_files.random_tensors(EAGLE3)
    sglang = {name if name in ("d2t", "t2d", "lm_head.weight") else f"model.{name}": t for name, t in tensors.items()}
    sglang["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    head = load_head(eagle3_files.write(tmp_path / "a", EAGLE3, sglang, SPECULATORS), target)
    other = load_head(eagle3_files.write(tmp_path / "b", EAGLE3, tensors, SAFEAILAB), target)
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_rows_of_the_targets_head_need_a_target_that_has_them(tmp_path):
    folder = write(tmp_path, EAGLE3 | {"flags": {"lm_head_from_target": True}})
    edit_tensors(folder, lm_head__weight=None)
    with pytest.raises(CheckpointError, match=r"rows of the target's, \[64, 32\]; got None"):
        build_head(read_checkpoint(folder), torch.ones(64, 32))
