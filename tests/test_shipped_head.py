"""The head that comes with treespec: small, sound, and of the shapes of its target."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import treespec
from treespec.errors import CheckpointError
from treespec.heads.checkpoint import read_checkpoint

NAME = "SmolLM2-135M-Instruct"


def test_it_is_small_and_says_how_it_was_made():
    folder = treespec.shipped_head(f"HuggingFaceTB/{NAME}")
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 24e6
    assert {file.name for file in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    card = (folder / "README.md").read_text()
    assert "treespec train" in card
    assert "held-out" in card
    assert "lm_head.weight" not in read_checkpoint(folder).tensors, "its rows are the target's"


def test_it_drafts_for_a_model_of_its_targets_shapes():
    torch.manual_seed(0)
    sizes = {"hidden_size": 576, "intermediate_size": 32, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=49152, num_hidden_layers=28, **sizes)).eval()
    speculation = treespec.TreeSpeculation(treespec.load_drafter(treespec.shipped_head(NAME), model), tree=8)
    ids = torch.tensor([[1, 4093, 198, 3725]])
    out = model.generate(ids, max_new_tokens=6, do_sample=False, custom_generate=speculation)
    assert out.equal(model.generate(ids, max_new_tokens=6, do_sample=False))
    assert speculation.stats.num_draft_tokens > 0


def test_another_models_name_lists_what_there_is():
    with pytest.raises(CheckpointError, match="smollm2-135m-instruct"):
        treespec.shipped_head("SmolLM3-3B")
