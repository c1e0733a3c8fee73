"""Pickled weights are read without running code, where there are no others."""

import pytest
import torch
from helpers.checkpoints import pickled
from helpers.dflash_files import AUTHORS, shape
from helpers.wrong_heads import EAGLE, write

from treespec.errors import CheckpointError, TreespecWarning
from treespec.heads.files.build import build_head
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


EMBEDDING = torch.arange(32.0)


@pytest.mark.parametrize("content", [EMBEDDING, {"embedding": EMBEDDING[None], "mask_token_id": 63}], ids=str)
def test_a_mask_embedding_is_read_from_its_own_file(tmp_path, content):
    """As Xiaomi ships it, next to safetensors."""
    write(tmp_path, shape(draft_vocab=64), AUTHORS)
    torch.save(content, tmp_path / "mask_embedding.pt")
    head = build_head(read_checkpoint(tmp_path), torch.zeros(64, 32), torch.zeros(64, 32))
    assert torch.equal(head.state_dict()["mask_embedding"], EMBEDDING)
