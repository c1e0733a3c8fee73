"""Small safetensors files: several writers of one file, and writes that fail."""

import os
import time

import pytest
import torch
from safetensors.torch import save_file

from treespec.data import tensor_file
from treespec.data.tensor_file import read_tensors, write_tensors
from treespec.errors import CheckpointError

FORMAT = "test-1"


def write(path, value):
    write_tensors(path, FORMAT, {"values": torch.full((1000,), value)}, {})


def test_two_writers_of_one_file_do_not_meet(tmp_path, monkeypatch):
    """One writes all of it while the other has not finished."""
    path, writers = tmp_path / "a.safetensors", [2]

    def save_slowly(tensors, scratch, metadata):
        save_file(tensors, scratch, metadata=metadata)
        if writers:
            write(path, writers.pop())
            assert read_tensors(path, FORMAT, ["values"])[0]["values"].tolist() == [2] * 1000

    monkeypatch.setattr(tensor_file, "save_file", save_slowly)
    write(path, 1)
    assert read_tensors(path, FORMAT, ["values"])[0]["values"].tolist() == [1] * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_goes_with_the_next_write_and_no_other_file_does(tmp_path):
    path, now = tmp_path / "a[1].safetensors", time.time()
    names = {
        "a[1].safetensors.7-aa.partial": 7200,
        "a[1].safetensors.8-bb.partial": 1,
        "b.safetensors.7-aa.partial": 7200,
    }
    for name, age in names.items():
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (now - age, now - age))
    write(path, 1)
    left = {"a[1].safetensors.8-bb.partial", "b.safetensors.7-aa.partial"}
    assert {file.name for file in tmp_path.iterdir()} == {path.name} | left


@pytest.mark.parametrize(("error", "expected"), [(OSError, CheckpointError), (KeyboardInterrupt, KeyboardInterrupt)])
def test_a_write_that_fails_leaves_the_file_and_nothing_next_to_it(tmp_path, monkeypatch, error, expected):
    path = tmp_path / "a.safetensors"
    write(path, 1)

    def fail(tensors, scratch, metadata):
        scratch.write_bytes(b"half")
        raise error

    monkeypatch.setattr(tensor_file, "save_file", fail)
    with pytest.raises(expected):
        write(path, 2)
    assert list(tmp_path.iterdir()) == [path]
    assert read_tensors(path, FORMAT, ["values"])[0]["values"].tolist() == [1] * 1000
