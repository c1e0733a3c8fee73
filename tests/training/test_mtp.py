"""An MTP layer is trained, written in Qwen's layout, and read back as the checkpoint's own."""

from dataclasses import replace

import torch
from helpers.tiny import identical
from helpers.training import CONFIG, write
from safetensors.torch import load_file

import treespec
from treespec.training import train

MTP = replace(CONFIG, kind="mtp")


def test_a_layer_is_trained_written_and_drafts(target, texts, tmp_path):
    evaluations = []
    result = train(target, texts, tmp_path, MTP, dtype=torch.float32, on_evaluation=evaluations.append)
    assert evaluations[-1].overlap[0] > evaluations[0].overlap[0] + 0.01
    names = {name.rpartition(".")[0] for name in load_file(result.folder / "model.safetensors")}
    assert {"mtp.fc", "mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.layers.0.self_attn.q_proj"} <= names
    assert all(name.startswith("mtp.") for name in names)
    assert 'treespec.load_mtp(model, "THIS FOLDER")' in (result.folder / "README.md").read_text()
    speculation = treespec.TreeSpeculation(treespec.load_mtp(target, result.folder), tree=6)
    assert identical(target, torch.tensor([[5, 7, 9, 11]]), speculation).num_draft_tokens > 0
    again = train(target, texts, tmp_path / "again", replace(MTP, start=str(tmp_path), num_steps=1))
    assert again.evaluation.overlap[0] > evaluations[0].overlap[0]


def test_random_first_weights(target, tmp_path):
    config = replace(MTP, is_initialised=False, num_steps=1)
    assert train(target, write(target, 12), tmp_path, config).evaluation.num_positions > 0
