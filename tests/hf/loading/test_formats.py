"""A new format of drafters is one new file and one line, which registers it."""

import pytest
import torch
from helpers.tiny import identical, tiny_llama
from helpers.toy_drafter import ToyDrafter

from treespec import TreeSpeculation, from_config, load_drafter
from treespec.errors import CheckpointError, ConfigError
from treespec.hf.loading import formats
from treespec.hf.loading.formats import FORMATS, Format, find_source, format_of
from treespec.lab.named import named_drafters

PROMPT = torch.tensor([[5, 9, 2, 7, 5, 9]])


def load(source, target, max_length):
    return ToyDrafter()


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """Patterns of files that the hub is asked for, whose only repository is a folder."""
    found = []
    monkeypatch.setattr(formats, "hub_problem", lambda name: None)
    monkeypatch.setattr(
        formats, "snapshot_download", lambda name, allow_patterns: found.append(allow_patterns) or str(tmp_path)
    )
    return found


@pytest.fixture
def folder(tmp_path):
    FORMATS.register("toy", Format(lambda source: source == tmp_path, load))
    yield tmp_path
    FORMATS.forget("toy")


def test_its_folders_draft_by_name_in_configurations_and_in_commands(folder):
    model = tiny_llama()
    config = {"method": "toy", "model": str(folder), "num_speculative_tokens": 3}
    (named,) = named_drafters([str(folder)], model, None, "model")
    loaded, configured = load_drafter(folder, model), from_config(config, target=model)
    assert [type(drafter) for drafter in (named, loaded, configured.drafter)] == [ToyDrafter] * 3
    for speculation in (TreeSpeculation(loaded, tree=6), configured):
        identical(model, PROMPT, speculation, max_new_tokens=8)
    with pytest.raises(ConfigError, match="head of method 'toy', the configuration says 'medusa'"):
        from_config(config | {"method": "medusa"}, target=model)
    with pytest.raises(ConfigError, match="'toy' drafts from the target's last hidden state: leave out hidden_layers"):
        load_drafter(folder, model, hidden_layers=(1,))


def test_the_hub_is_asked_for_the_configuration_first(folder, fetched):
    assert format_of("publisher/toy") == "toy"
    assert fetched == [["config.json"]]
    (folder / "model.safetensors").touch()
    assert type(load_drafter("publisher/toy", tiny_llama())) is ToyDrafter
    assert fetched[1:] == [["config.json"], ["config.json", "*.safetensors*", "mask_embedding.pt"]]


def test_files_without_safetensors_are_fetched_as_pickles(folder, fetched):
    assert find_source("publisher/toy") == folder
    assert [patterns[1] for patterns in fetched] == ["*.safetensors*", "*.bin"]


def test_without_its_line_there_is_no_such_format(tmp_path):
    with pytest.raises(CheckpointError):
        load_drafter(tmp_path, tiny_llama())
    with pytest.raises(ConfigError, match=r"method must be one of .*'assistant'.*'medusa'.*'mtp'"):
        from_config({"method": "toy", "model": str(tmp_path), "num_speculative_tokens": 3}, target=tiny_llama())
