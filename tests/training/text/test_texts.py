"""Shards of texts, and fingerprints of models."""

import pytest
import torch
from helpers.tiny import tiny_llama
from transformers import AutoModelForCausalLM

from treespec.data.tensor_file import write_tensors
from treespec.errors import CheckpointError
from treespec.training.text.texts import FORMAT, Texts, fingerprint, read_folder, save_texts


@pytest.mark.parametrize(
    ("name", "values"),
    [("lengths", [3, 4]), ("lengths", [[6]]), ("lengths", 6), ("tokens", 6), ("tokens", [[1]] * 6), ("top", [1] * 6)],
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


def test_the_fingerprint_is_the_same_wherever_the_files_lie(tmp_path):
    model = tiny_llama()
    for name in ("here", "there"):
        model.save_pretrained(tmp_path / name)
        assert fingerprint(AutoModelForCausalLM.from_pretrained(tmp_path / name)) == fingerprint(model)


def test_any_row_and_any_setting_changes_the_fingerprint():
    model = tiny_llama().to(torch.bfloat16)
    known, weight = {fingerprint(model)}, torch.as_tensor(model.get_input_embeddings().weight)
    for row in range(len(weight)):
        with torch.no_grad():
            weight[row, -1] += 1
        known.add(fingerprint(model))
    model.config.rope_parameters = {**(model.config.rope_parameters or {}), "rope_theta": 1234.0}
    known.add(fingerprint(model))
    assert len(known) == len(model.get_input_embeddings().weight) + 2
