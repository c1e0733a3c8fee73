"""The head that comes with treespec: small, sound, the one that was measured, and of the shapes of its target."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from helpers.tiny import identical
from transformers import LlamaConfig, LlamaForCausalLM

import treespec
from treespec.errors import CheckpointError
from treespec.heads.files.checkpoint import read_checkpoint

NAME = "SmolLM2-135M-Instruct"
MEASURED = "71006c114736ff5d939f8a9d8f1df9530c070715259fdddfd72bb2b674b07a2d"
"""SHA-256 of the weights that benchmarks/results has numbers of."""
TRAINING = Path(__file__).parents[2] / "benchmarks" / "results" / "training" / "curve.json"


def test_it_is_small_and_the_one_that_was_measured():
    folder = treespec.shipped_head(f"HuggingFaceTB/{NAME}")
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 24e6
    assert {file.name for file in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert "lm_head.weight" in read_checkpoint(folder).tensors, "its rows are its own"
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == MEASURED
    run, card = json.loads(TRAINING.read_text())["last"], (folder / "README.md").read_text()
    for depth, (shares, overlap) in enumerate(zip(run["greedy_acceptance"], run["overlaps"], strict=True), start=1):
        assert f"| {depth} | {' | '.join(f'{share:.3f}' for share in [*shares[:4], overlap])} |" in card
    with pytest.raises(CheckpointError, match="smollm2-135m-instruct"):
        treespec.shipped_head("SmolLM3-3B")


def test_it_drafts_for_a_model_of_its_targets_shapes():
    torch.manual_seed(0)
    sizes = {"hidden_size": 576, "intermediate_size": 32, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=49152, num_hidden_layers=28, **sizes)).eval()
    speculation = treespec.TreeSpeculation(treespec.load_drafter(treespec.shipped_head(NAME), model), tree=8)
    ids = torch.tensor([[1, 4093, 198, 3725]])
    assert identical(model, ids, speculation, max_new_tokens=6).num_draft_tokens > 0
