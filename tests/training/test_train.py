"""Drafters of every kind are trained, saved and loaded."""

from dataclasses import replace

import pytest
import torch
from helpers.tiny import identical
from helpers.training import CONFIG, SMALL, VOCAB, random_texts, write
from helpers.zoo import build
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

import treespec
from treespec.errors import ConfigError
from treespec.training import TrainingConfig, train
from treespec.training.heads import choose_vocabulary


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "eagle3") for name in ("gemma2", "opt")),
        ("cohere", "dflash"),
        *((name, "mtp") for name in ("qwen3_5_text", "gemma2")),
    ],
)
def test_drafters_for_other_architectures_are_trained_and_loaded(name, kind, tmp_path):
    target = build(name)
    result = train(target, random_texts(96), tmp_path, TrainingConfig(kind=kind, **SMALL))
    speculation = treespec.TreeSpeculation(treespec.load_drafter(result.folder, target), tree=6)
    assert identical(target, torch.tensor([[5, 7, 9, 11]]), speculation, max_new_tokens=6).num_draft_tokens > 0


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "draft_model"])
def test_texts_that_fill_the_models_positions_are_cut(tmp_path, kind):
    """A written text ends with a token that the model has no position to read at."""
    target = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=19, n_embd=32, n_layer=3, n_head=4)).eval()
    result = train(target, random_texts(96), tmp_path, TrainingConfig(kind=kind, **SMALL | {"num_steps": 3}))
    assert result.progress.num_tokens == 19 * (4 + 4 + 2)


def test_held_out_texts_are_drafted_better(trained):
    first, *_, last = trained.evaluations
    assert len(trained.evaluations) == 3
    assert last.overlap[0] > first.overlap[0] + 0.01
    assert last.num_greedy_positions > 100


def test_frozen_rows_are_the_targets_and_in_a_draft_models_file_alone(trained, target):
    files = load_file(trained.result.folder / "model.safetensors")
    if trained.config.kind == "draft_model":
        assert torch.equal(files["lm_head.weight"], target.lm_head.weight)
        return
    assert "lm_head.weight" not in files
    head = treespec.load_drafter(trained.result.folder, target).head
    assert torch.equal(head.lm_head.weight, target.lm_head.weight[head.target_ids])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "dflash", "mask_token": 10_000}, "mask_token"),
        ({"kind": "draft_model", "num_layers": 4}, "at most the target's 3"),
        ({"hidden_layers": (0, 3)}, "different numbers from 0 to 2"),
        ({"hidden_layers": (2, 2)}, "different numbers from 0 to 2"),
    ],
)
def test_settings_that_do_not_fit_the_target_are_refused_before_it_reads(target, texts, tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        train(target, texts, tmp_path, replace(CONFIG, **options), on_tokens=lambda _: pytest.fail("the target reads"))
    with pytest.raises(ConfigError, match="at least 5 texts"):
        train(target, write(target, 3), tmp_path, CONFIG)


def test_the_vocabulary_is_of_the_most_frequent_tokens():
    tokens, top = torch.tensor([5, 5, 2, 2, 2, 7, 1]), torch.tensor([[7, -1], [7, 1]])
    assert choose_vocabulary(tokens, top, 9, 3).tolist() == [2, 5, 7]
    assert choose_vocabulary(tokens, top, 9, 9).tolist() == list(range(9))


def test_the_default_mask_token_is_the_last_of_the_least_used(texts, target, tmp_path):
    unused = [token for token in range(VOCAB) if not (texts.tokens == token).any()]
    result = train(target, texts, tmp_path, replace(CONFIG, kind="dflash", num_steps=1))
    head = treespec.load_drafter(result.folder, target).head
    assert not unused or head.config.mask_token == unused[-1]
    counts = texts.tokens.bincount(minlength=VOCAB)
    assert counts[head.config.mask_token] == counts.min()


MTP = replace(CONFIG, kind="mtp")


def test_a_layer_is_trained_written_and_drafts(target, texts, tmp_path):
    evaluations = []
    result = train(target, texts, tmp_path, MTP, dtype=torch.float32, on_evaluation=evaluations.append)
    assert evaluations[-1].overlap[0] > evaluations[0].overlap[0] + 0.01
    names = {name.rpartition(".")[0] for name in load_file(result.folder / "model.safetensors")}
    assert {"mtp.fc", "mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.layers.0.self_attn.q_proj"} <= names
    assert all(name.startswith("mtp.") for name in names)
    assert 'treespec.load_mtp(model, "THIS FOLDER")' in (result.folder / "README.md").read_text()
    speculation = treespec.TreeSpeculation(treespec.load_mtp(target, result.folder), tree=6)
    assert identical(target, torch.tensor([[5, 7, 9, 11]]), speculation).num_draft_tokens > 0
    again = train(target, texts, tmp_path / "again", replace(MTP, start=str(tmp_path), num_steps=1))
    assert again.evaluation.overlap[0] > evaluations[0].overlap[0]


def test_random_first_weights(target, tmp_path):
    config = replace(MTP, is_initialised=False, num_steps=1)
    assert train(target, write(target, 12), tmp_path, config).evaluation.num_positions > 0
