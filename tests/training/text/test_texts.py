"""Shards of texts."""

import pytest
import torch

from treespec.data.tensor_file import write_tensors
from treespec.errors import CheckpointError
from treespec.training.text.texts import FORMAT, Texts, read_folder, save_texts


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lengths", [3, 4]),
        ("lengths", [[6]]),
        ("lengths", 6),
        ("tokens", 6),
        ("tokens", [[1]] * 6),
        ("top", [1] * 6),
    ],
)
def test_texts_whose_tensors_do_not_fit_are_refused(tmp_path, name, values):
    parts = {"tokens": [1, 2, 3, 4, 5, 6], "lengths": [2, 4], "top": [[1, 2]] * 6} | {name: values}
    path = tmp_path / "text-00000.safetensors"
    write_tensors(path, FORMAT, {part: torch.tensor(given) for part, given in parts.items()}, {})
    with pytest.raises(CheckpointError, match=r"text-00000\.safetensors holds tensors that do not fit"):
        read_folder(tmp_path)


def test_texts_with_different_numbers_of_candidates_are_not_joined(tmp_path):
    tokens, lengths = torch.tensor([1, 2, 3]), torch.tensor([3])
    for number, count in enumerate((4, 2)):
        top = torch.zeros(3, count, dtype=torch.long)
        save_texts(tmp_path / f"text-0000{number}.safetensors", Texts(tokens, lengths, top), "")
    with pytest.raises(CheckpointError, match="2 and 4 probable next tokens"):
        read_folder(tmp_path)
