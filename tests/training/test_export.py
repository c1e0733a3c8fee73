"""Trained heads written again."""

import copy
from typing import Any

import pytest
import torch
from helpers import dflash_files
from helpers.head_files import SPECULATORS
from helpers.tiny import tiny_llama
from helpers.training import SMALL, VOCAB, write
from safetensors.torch import load_file

import treespec
from treespec.errors import ConfigError
from treespec.heads.files.export import save_head
from treespec.training import TrainingConfig, export_head, train


def test_a_cut_bias_is_the_nearest_of_its_rank(tmp_path):
    target = tiny_llama(vocab_size=VOCAB, num_layers=3)
    config = TrainingConfig(kind="dflash", **SMALL | {"markov_rank": 6, "learning_rate": 0.02})
    folder = train(target, write(target, 12), tmp_path / "run", config, dtype=torch.float32).folder
    head: Any = treespec.load_drafter(folder, target).head
    whole = head.markov_head.markov_w1.weight @ head.markov_head.markov_w2.weight.T
    left, sizes, right = torch.linalg.svd(whole)
    for rank in (6, 4):
        export_head(folder, target, tmp_path / "cut", torch.float32, has_all=False, markov_rank=rank)
        cut: Any = treespec.load_drafter(tmp_path / "cut", target).head.markov_head
        assert cut.markov_w1.weight.shape == (VOCAB, rank)
        nearest = left[:, :rank] * sizes[:rank] @ right[:rank]
        torch.testing.assert_close(cut.markov_w1.weight @ cut.markov_w2.weight.T, nearest, atol=1e-5, rtol=1e-3)
    with pytest.raises(ConfigError, match="markov_rank"):
        export_head(folder, target, tmp_path / "cut", markov_rank=7)


@pytest.mark.parametrize("trained", ["eagle3", "dflash"], indirect=True)
def test_export_leaves_out_only_what_the_target_has(trained, target, tmp_path):
    target = copy.deepcopy(target)
    own: Any = treespec.load_drafter(trained.result.folder, target).head
    folder = tmp_path / "other-rows"
    own.lm_head.weight = torch.nn.Parameter(own.lm_head.weight + 1)
    save_head(own, own.config.hidden_layers, folder)
    export_head(folder, target, tmp_path / "own", torch.float32, has_all=False)
    assert "lm_head.weight" in load_file(tmp_path / "own" / "model.safetensors")
    assert treespec.load_drafter(tmp_path / "own", target).head.lm_head.weight.equal(own.lm_head.weight)

    with torch.no_grad():
        rows = target.get_output_embeddings().weight
        rows[own.target_ids] = own.lm_head.weight
    export_head(folder, target, tmp_path / "shared", has_all=False)
    assert not {"lm_head.weight", "embed_tokens.weight"} & set(load_file(tmp_path / "shared" / "model.safetensors"))


@pytest.mark.parametrize("trained", ["eagle3"], indirect=True)
def test_export_through_a_coarser_target_loses_nothing(trained, target, tmp_path):
    folder = tmp_path / "stored"  # In float16, as `train` writes it.
    export_head(trained.result.folder, target, folder, has_all=False)
    export_head(folder, copy.deepcopy(target).bfloat16(), tmp_path / "out")
    own, exported = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert exported.keys() - own.keys() == {"lm_head.weight", "embed_tokens.weight"}
    assert all(exported[name].equal(tensor) for name, tensor in own.items())


def test_a_bias_with_a_gate_keeps_its_rank(tmp_path):
    made = dflash_files.dspark(flags={"markov_head_type": "gated"})
    dflash_files.write(tmp_path / "head", made, dflash_files.random_tensors(made), SPECULATORS)
    with pytest.raises(ConfigError, match="has a gate, which has no smaller rank"):
        export_head(tmp_path / "head", tiny_llama(num_layers=3), tmp_path / "cut", markov_rank=2)
    export_head(tmp_path / "head", tiny_llama(num_layers=3), tmp_path / "whole")
