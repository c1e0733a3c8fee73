"""Weights of other runs, and damaged states."""

from dataclasses import replace

import pytest
import torch
from helpers.training import CONFIG, VOCAB
from safetensors.torch import load_file

from treespec.errors import CheckpointError
from treespec.training import train
from treespec.training.text.texts import Texts


def test_a_run_can_begin_with_anothers_weights(trained, target, texts, tmp_path):
    features = trained.folder / "features"
    barely = replace(trained.config, start=str(trained.folder), num_steps=1, learning_rate=1e-12)
    result = train(target, texts, tmp_path / "on", barely, features=features)
    assert result.evaluation == trained.result.evaluation
    assert result.progress.step == 1
    card = (result.folder / "README.md").read_text()
    assert f"Begins with the weights of another run, `{trained.folder.name}`." in card
    assert str(trained.folder) not in card + (tmp_path / "on" / "evaluation.json").read_text()
    larger = replace(barely, num_layers=(trained.config.num_layers or trained.config.layers) + 1)
    with pytest.raises(CheckpointError, match="lacks the tensors"):
        train(target, texts, tmp_path / "larger", larger, features=features)
    with pytest.raises(CheckpointError, match="there is no file"):
        train(target, texts, tmp_path / "none", replace(barely, start=str(tmp_path)), features=features)


def test_a_run_can_begin_with_a_trained_heads_files(target, texts, tmp_path):
    first, features = replace(CONFIG, kind="eagle3", num_steps=2), tmp_path / "features"
    found = train(target, texts, tmp_path / "first", first, features=features, dtype=torch.float32)
    barely = replace(first, start=str(found.folder), num_steps=1, learning_rate=1e-12)
    result = train(target, texts, tmp_path / "on", barely, features=features, dtype=torch.float32)
    assert result.evaluation == found.evaluation
    assert [line["step"] for line in result.progress.log if "overlap" in line] == [0, 1]
    common = int(texts.tokens.bincount(minlength=VOCAB).argmax())
    rare = Texts(torch.where(texts.tokens == common, VOCAB - 1, texts.tokens), texts.lengths, texts.top)
    kept = train(target, rare, tmp_path / "rare", barely, dtype=torch.float32)
    of_both = [load_file(r.folder / "model.safetensors")["d2t"].tolist() for r in (found, kept)]
    assert of_both[0] == of_both[1], "the draft vocabulary is the head's, whatever the texts"
    other = replace(barely, draft_vocab_size=(barely.draft_vocab_size + 1) // 2)
    smaller = train(target, texts, tmp_path / "smaller", other, features=features, dtype=torch.float32)
    own, whole = (load_file(r.folder / "model.safetensors") for r in (smaller, found))
    assert len(own["d2t"]) < len(whole["d2t"])
    assert torch.allclose(own["fc.weight"], whole["fc.weight"])
    with pytest.raises(CheckpointError, match=r"reads \[.*\], where this one reads \[0, 1\]"):
        train(target, texts, tmp_path / "states", replace(barely, hidden_layers=(0, 1)))
    with pytest.raises(CheckpointError, match=r"other sizes: .*layers\.1"):
        train(target, texts, tmp_path / "layers", replace(barely, num_layers=2), features=features)
    two = train(target, texts, tmp_path / "two", replace(first, num_layers=2), features=features)
    with pytest.raises(CheckpointError, match=r"other sizes: .*layers\.1"):
        train(target, texts, tmp_path / "fewer", replace(barely, start=str(two.folder)), features=features)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"kind": "dflash"}, {"markov_rank": 16}, r"other sizes: .*markov"),
        ({"kind": "draft_model", "num_layers": 2}, {"num_layers": 1}, r"has more: .*layers\.1"),
        ({"kind": "dflash", "mask_token": 5}, {"mask_token": 6}, "'mask_token': 5.*'mask_token': 6"),
    ],
)
def test_weights_that_another_run_cannot_use_are_named(target, texts, tmp_path, first, second, words):
    config = replace(CONFIG, num_steps=1, **first)
    train(target, texts, tmp_path / "first", config)
    with pytest.raises(CheckpointError, match=words):
        train(target, texts, tmp_path / "second", replace(config, start=str(tmp_path / "first"), **second))


@pytest.mark.parametrize("trained", ["eagle3"], indirect=True)
def test_another_run_in_the_folder_is_refused(trained, target, texts):
    with pytest.raises(CheckpointError, match="is of a run with other settings"):
        train(target, texts, trained.folder, replace(trained.config, learning_rate=1e-3))


def test_a_damaged_state_is_named(target, texts, tmp_path):
    train(target, texts, tmp_path, replace(CONFIG, num_steps=1))
    (tmp_path / "state.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        train(target, texts, tmp_path, replace(CONFIG, num_steps=1))


def test_where_nothing_can_be_written_is_named(target, texts, tmp_path):
    def occupy(_):
        (tmp_path / "state.safetensors" / "folder").mkdir(parents=True)

    with pytest.raises(CheckpointError, match=r"state\.safetensors cannot be written"):
        train(target, texts, tmp_path, replace(CONFIG, num_steps=1), on_step=occupy)
    assert not list(tmp_path.rglob("*.partial"))
