"""Pickled weights are read without running code, where there are no others."""

import pytest
import torch
from helpers.checkpoints import pickled
from helpers.wrong_heads import EAGLE, write

from treespec.errors import CheckpointError, TreespecWarning
from treespec.heads.files.checkpoint import read_checkpoint


def test_a_pickle_holds_the_same_tensors(tmp_path):
    expected = read_checkpoint(write(tmp_path, EAGLE)).tensors
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read where there are safetensors")
    assert read_checkpoint(tmp_path).tensors.keys() == expected.keys()
    pickled(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"no weights")
    with pytest.warns(TreespecWarning, match=r"pytorch_model\.bin is a pickle: convert it once by .*save_file"):
        found = read_checkpoint(tmp_path).tensors
    assert found.keys() == expected.keys()
    assert all(found[name].equal(tensor) for name, tensor in expected.items())


def test_values_of_a_pickle_are_checked_too(tmp_path):
    write(tmp_path, EAGLE)
    pickled(tmp_path)
    file = tmp_path / "pytorch_model.bin"
    torch.save(torch.load(file, weights_only=True) | {"norm.weight": torch.full((32,), torch.nan)}, file)
    with pytest.warns(TreespecWarning), pytest.raises(CheckpointError, match="NaN or infinity in norm"):
        read_checkpoint(tmp_path)
