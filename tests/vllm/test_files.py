"""Drafters' files: vLLM fetches and reads them, and what treespec's own reader refuses stays refused."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("vllm.config")

import huggingface_hub
from vllm.config import LoadConfig  # pyright: ignore[reportMissingImports]

from treespec.errors import CheckpointError
from treespec.heads.files.checkpoint import read_checkpoint
from treespec.vllm import mtp
from treespec.vllm.files import Files
from treespec.vllm.heads import find_folder, load_served_head
from treespec.vllm.options import Options
from treespec.vllm.readers import load_reader

FILE = "model.safetensors"


@pytest.fixture
def folder(folders: tuple[str, str], tmp_path: Path) -> Path:
    """A copy of a head's folder."""
    return Path(shutil.copytree(folders[1], tmp_path / "head"))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / FILE)


def are_same(folder: Path, tensors: dict[str, torch.Tensor], **load: Any) -> bool:
    found = Files(LoadConfig(**load)).read(folder)
    assert (found.path, found.config) == (folder, json.loads((folder / "config.json").read_text()))
    return found.tensors.keys() == tensors.keys() and all(tensors[name].equal(t) for name, t in found.tensors.items())


@pytest.mark.parametrize("load_format", ["auto", "hf", "safetensors", "dummy", "runai_streamer"])
def test_vllm_reads_what_the_own_reader_reads(load_format: str, folder: Path) -> None:
    extra = {"concurrency": 4} if load_format == "runai_streamer" else {}
    expected = read_checkpoint(folder).tensors
    assert are_same(folder, expected, load_format=load_format, model_loader_extra_config=extra)


def test_files_that_the_index_does_not_name_are_left_out(folder: Path) -> None:
    tensors = tensors_of(folder)
    first, *rest = sorted(tensors)
    (folder / FILE).rename(folder / "copy.safetensors")
    parts = {"part-1.safetensors": [first], "part-2.safetensors": rest}
    for name, names in parts.items():
        save_file({one: tensors[one] for one in names}, folder / name)
    with pytest.raises(CheckpointError, match="twice"):
        Files(LoadConfig()).read(folder)
    index = {one: name for name, names in parts.items() for one in names}
    (folder / f"{FILE}.index.json").write_text(json.dumps({"weight_map": index}))
    assert are_same(folder, tensors)
    (folder / "part-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match="referenced in index but missing"):
        Files(LoadConfig()).read(folder)


class Code:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


def test_of_pickles_nothing_but_tensors_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = tensors_of(folder)
    (folder / FILE).unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert are_same(folder, tensors)
    for content in (Code(), [1, 2], {"step": 3}):
        with (folder / "pytorch_model.bin").open("wb") as file:
            pickle.dump(content, file) if isinstance(content, Code) else torch.save(content, file)
        with pytest.raises(CheckpointError, match=r"holds more than tensors|must hold tensors by name"):
            Files(LoadConfig()).read(folder)
    assert "run" not in capsys.readouterr().out


def spoil(tensors: dict[str, torch.Tensor], value: float) -> dict[str, torch.Tensor]:
    name = next(name for name in sorted(tensors) if tensors[name].is_floating_point())
    return {**tensors, name: torch.full_like(tensors[name], value)}


def test_damaged_files_are_refused(folder: Path) -> None:
    tensors, content = tensors_of(folder), (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[:-8])
    with pytest.raises(CheckpointError, match=r"the weights in .*head cannot be read"):
        Files(LoadConfig()).read(folder)
    save_file(spoil(tensors, torch.nan), folder / FILE)
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        Files(LoadConfig()).read(folder)
    (folder / FILE).unlink()
    with pytest.raises(CheckpointError, match=r"needs \*\.safetensors files, found none"):
        Files(LoadConfig()).read(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Files(LoadConfig()).read(folder)


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub with a repository of two versions, of which main is the first; there is no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "cache/models--an--owner"
    for name, commit in (("main", "1" * 40), ("v2", "2" * 40)):
        shutil.copytree(folder, repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / name).write_text(commit)
    save_file(spoil(tensors_of(folder), 2.0), repository / "snapshots" / ("2" * 40) / FILE)
    return tmp_path / "cache"


def test_a_revision_is_of_repositories_alone(hub: Path, folder: Path) -> None:
    files = Files(LoadConfig(download_dir=str(hub)), "v2")
    assert find_folder("an/owner", files).name == "2" * 40
    for name in (str(folder), "SmolLM2-135M-Instruct"):
        with pytest.raises(CheckpointError, match="leave out revision='v2'"):
            find_folder(name, files)
    with pytest.raises(CheckpointError, match="cannot be fetched"):
        find_folder("another/SmolLM2-135M-Instruct", files)


def test_repositories_are_found_in_the_engines_download_dir_by_revision(hub: Path) -> None:
    load = LoadConfig(download_dir=str(hub))
    found = {revision: Files(load, revision).find("an/owner") for revision in (None, "main", "v2", "2" * 40)}
    assert [path.name[0] for path in found.values()] == ["1", "1", "2", "2"]
    assert find_folder("an/owner", Files(load, "v2")) == found["v2"]
    assert are_same(found["v2"], tensors_of(found["v2"]))
    with pytest.raises(CheckpointError, match="an/owner is not a folder and cannot be fetched from the hub"):
        Files(load, "v3").find("an/owner")
    with pytest.raises(CheckpointError, match=r"no head for 'an/owner'.*; an/owner is not a folder and"):
        find_folder("an/owner", Files(LoadConfig(download_dir=str(hub / "other"))))
    with pytest.raises(CheckpointError, match="no head for 'nothing'"):
        find_folder("nothing", Files(load))


def test_options_and_the_engine_say_which_files(hub: Path) -> None:
    """As far as a draft model, which has no configuration of one here, is looked for."""
    load, ranks = LoadConfig(download_dir=str(hub)), SimpleNamespace(is_first_rank=True)
    config = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.float32), load_config=load)
    for revision, message in (("v2", "cannot load a causal language model from .*/2222"), ("v3", "not a folder and")):
        options = Options(7, "draft_model", 8, draft_model="an/owner", revision=revision)
        with pytest.raises(CheckpointError, match=message):
            load_reader(options, torch.nn.Linear(1, 1), config, torch.device("cpu"), ranks)


def test_the_targets_own_layers_are_those_of_its_revision(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtp, "load_served_mtp", lambda folder, *rest: folder.name[0])
    vocabulary = torch.nn.Embedding(3, 4)
    vars(vocabulary)["org_vocab_size"] = 3
    model = SimpleNamespace(model=SimpleNamespace(embed_tokens=vocabulary))
    load = LoadConfig(download_dir=str(hub))
    for revision, asked, expected in ((None, None, "1"), ("v2", None, "2"), ("v2", "main", "1")):
        config = SimpleNamespace(model="an/owner", revision=revision)
        for name in ("mtp", "an/owner"):
            assert load_served_head(name, model, config, Files(load, asked)) == expected
