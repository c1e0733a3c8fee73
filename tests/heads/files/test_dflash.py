"""DFlash and DSpark heads: their files, what blocks see, training's pass over anchored blocks."""

import json

import pytest
from helpers.dflash_files import AUTHORS, FULL, SLIDING, dspark, random_tensors, shape, write
from helpers.head_files import SPECULATORS
from helpers.tiny import tiny_llama
from helpers.wrong_heads import edit_config

from treespec import load_drafter
from treespec.errors import CheckpointError
from treespec.heads.modules.dflash import Span
from treespec.hf.loading.heads import load_head

MADE = dspark()


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=8)


def test_which_hidden_states_are_fused(tmp_path, target):
    """z-lab counts layers' outputs from zero and spreads them by default; speculators names hidden states."""
    whole = shape(draft_vocab=64)
    write(tmp_path, whole, random_tensors(whole), AUTHORS)
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
    write(tmp_path, MADE, random_tensors(MADE), SPECULATORS)
    assert load_drafter(tmp_path, target).hidden_layers == (1, 2)


def test_what_a_block_sees_is_read(tmp_path, target):
    mixed = {"layer_types": [FULL, SLIDING], "sliding_window": 5}
    made = shape(draft_vocab=64, llama=mixed)
    expected = {
        (AUTHORS, ()): (Span(), Span(5)),
        (AUTHORS, ("causal",)): (Span(None, True), Span(5, True)),
        (SPECULATORS, ()): (Span(), Span(5, True)),
        (SPECULATORS, ("non-causal",)): (Span(), Span(5)),
    }
    for (format_name, words), spans in expected.items():
        write(tmp_path, made, random_tensors(made), format_name)
        if "causal" in words:
            own = json.loads((tmp_path / "config.json").read_text())["dflash_config"]
            edit_config(tmp_path, dflash_config=own | {"causal": True})
        if "non-causal" in words:
            edit_config(tmp_path, sliding_window_non_causal=True)
        assert load_head(tmp_path, target).config.spans == spans


def test_a_whole_vocabulary_shares_the_targets_own_weights(tmp_path, target):
    made = shape(draft_vocab=64)
    head = load_head(write(tmp_path, made, random_tensors(made), AUTHORS), target)
    assert head.lm_head.weight.data_ptr() == target.lm_head.weight.data_ptr()
    assert head.embedding.data_ptr() == target.get_input_embeddings().weight.data_ptr()


def test_a_confidence_head_in_the_file_is_ignored(tmp_path, target):
    made = dspark(extras=("head_norms", "confidence"))
    tensors = random_tensors(made)
    assert "confidence_head.proj.weight" in tensors
    head = load_head(write(tmp_path, made, tensors, SPECULATORS), target)
    assert not any("confidence" in name for name in head.state_dict())
