"""Folders of a tiny model's files in which one thing is wrong."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from helpers.tiny import tiny_llama
from safetensors.torch import load_file, save_file


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])


def no_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"what a proxy says instead of a file")


def pickled(folder: Path) -> None:
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()


def code_in_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Path("runs code when it is opened")}, folder / "pytorch_model.bin")


def no_tensors_in_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": [1.0]}, folder / "pytorch_model.bin")


def half_a_pickle(folder: Path) -> None:
    pickled(folder)
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:500])


def lacking_a_tensor(folder: Path) -> None:
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    del tensors["lm_head.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})


def of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))


def without_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def untouched(folder: Path) -> None:
    """Nothing is wrong with the model; there is no tokenizer with it."""


def with_checkpoint(spoil, use):
    """Return `use(folder)` for a folder of model files after `spoil(folder)`."""
    with TemporaryDirectory() as folder:
        tiny_llama(num_layers=1).save_pretrained(folder)
        spoil(Path(folder))
        return use(folder)
