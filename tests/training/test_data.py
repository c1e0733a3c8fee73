"""Features on disk, and texts that cannot be learned from."""

import math
from dataclasses import replace

import pytest
import torch
from helpers.training import CONFIG, VOCAB

from treespec.errors import CheckpointError, ConfigError
from treespec.training import train


def test_features_are_read_again_where_the_bound_leaves_no_room(trained, target, texts, tmp_path):
    result = train(target, texts, tmp_path, replace(trained.config, max_cache_gb=0.0))
    assert not list((tmp_path / "features").glob("*"))
    assert result.evaluation.overlap == pytest.approx(trained.result.evaluation.overlap, abs=1e-3)


def test_damaged_features_are_named(trained, target, texts, tmp_path):
    train(target, texts, tmp_path, replace(CONFIG, num_steps=1))
    shard = next((tmp_path / "features").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=shard.name):
        train(target, texts, tmp_path, replace(CONFIG, num_steps=1))


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "draft_model"])
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("tokens", lambda tokens: tokens + VOCAB, "another model's"),
        ("tokens", lambda tokens: tokens - VOCAB, "another model's"),
        ("top", lambda top: torch.where(top >= 0, top + VOCAB, top), "another model's"),
        ("top", lambda top: top[:, :0], "probable next tokens"),
        ("lengths", lambda lengths: torch.cat([lengths[1:], lengths[:1] + 1, -torch.ones(1).long()]), "an empty one"),
    ],
)
def test_texts_of_another_model_or_none_are_refused(target, texts, tmp_path, kind, name, change, words):
    changed = texts._replace(**{name: change(getattr(texts, name))})
    with pytest.raises(ConfigError, match=words):
        train(target, changed, tmp_path, replace(CONFIG, kind=kind))


def test_the_cache_can_be_without_bound(target, texts, tmp_path):
    train(target, texts, tmp_path, replace(CONFIG, num_steps=1, max_cache_gb=math.inf))
