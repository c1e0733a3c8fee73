"""MTP layers in the files that the speculators library's converter and trainer write."""

import json

import pytest
import torch
from helpers.head_runs import check_distributions, left_padded, recording
from helpers.mtp_files import PlainMtp, write
from helpers.tiny import identical
from safetensors.torch import load_file, save_file

from treespec import KAry, TreeSpeculation, from_config, load_drafter, load_mtp
from treespec.errors import ConfigError
from treespec.heads import Mtp

NAMES = {
    "mtp.fc.weight": "mtp_layers.0.input_proj.weight",
    "mtp.norm.weight": "mtp_layers.0.final_layernorm.weight",
    "mtp.pre_fc_norm_hidden.": "mtp_layers.0.hidden_layernorm.",
    "mtp.pre_fc_norm_embedding.": "mtp_layers.0.token_layernorm.",
    "mtp.layers.0.": "mtp_layers.0.",
}
"""The converter's names for the tensors of Qwen's checkpoints."""


def convert(checkpoint, folder):
    """The MTP layer of a checkpoint in a folder of its own, its experts joined as the converter joins them."""
    folder.mkdir()
    config = {"speculators_model_type": "mtp", "architectures": ["MTPDraftModel"], "num_nextn_predict_layers": 1}
    config["transformer_layer_config"] = json.loads((checkpoint / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {n: t for n, t in load_file(checkpoint / "model.safetensors").items() if n.startswith("mtp.")}
    for old, new in NAMES.items():
        tensors = {n.replace(old, new) if n.startswith(old) else n: t for n, t in tensors.items()}
    experts = "mtp_layers.0.mlp.experts."
    if f"{experts}0.gate_proj.weight" in tensors:
        count = len({name.split(".experts.")[1].split(".")[0] for name in tensors if ".experts." in name})
        parts = {
            part: [tensors.pop(f"{experts}{i}.{part}_proj.weight") for i in range(count)]
            for part in ("gate", "up", "down")
        }
        pairs = zip(parts["gate"], parts["up"], strict=True)
        tensors[f"{experts}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        tensors[f"{experts}down_proj"] = torch.stack(parts["down"])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_converted_layers_draft_as_the_checkpoints_own(tmp_path, name):
    made = write(tmp_path / "target", name)
    folder = convert(tmp_path / "target", tmp_path / "mtp")
    loaded = load_drafter(folder, made.target)
    assert isinstance(loaded, Mtp)
    assert loaded.head.config.layout == "speculators"
    drafter = recording(Mtp)(loaded.head, loaded.hidden_layers)
    identical(made.target, left_padded([9, 4]), TreeSpeculation(drafter, tree=KAry((2, 2))), max_new_tokens=6)
    assert check_distributions(made.target, drafter, PlainMtp(made)) > 20
    with pytest.raises(ConfigError, match="leave out hidden_layers"):
        load_drafter(folder, made.target, hidden_layers=(1,))
    config = {"method": "mtp", "model": str(folder), "num_speculative_tokens": 2}
    drafter = from_config(config, target=made.target).drafter
    assert isinstance(drafter, Mtp)
    assert load_mtp(made.target, folder).head.config == drafter.head.config
    own = from_config({"method": "qwen3_next_mtp", "num_speculative_tokens": 2}, target=made.target).drafter
    assert isinstance(own, Mtp), "one of vLLM's older names, of the checkpoint's own layers"
