"""Which texts are held out, and which a step reads."""

import itertools
from dataclasses import replace

import pytest
import torch
from helpers.training import CONFIG, LENGTH

from treespec.errors import ConfigError
from treespec.training import train
from treespec.training.data import FeatureSet
from treespec.training.features import FeatureReader
from treespec.training.sampler import Sampler, split_texts
from treespec.training.text.texts import Texts


def test_every_text_once_per_epoch_and_another_order_in_the_next():
    sampler = Sampler([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 2, seed=3)
    epochs = [[sampler.batch(6 * epoch + i) for i in range(6)] for epoch in range(2)]
    assert all(sorted(itertools.chain(*epoch)) == list(range(11)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert Sampler([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 2, seed=3).batch(7) == epochs[1][1]


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_texts_that_the_target_generated_no_part_of_are_left_out(target, texts, tmp_path, kind):
    """Long prompts, once cut: of one length, they share batches in which nothing can be learned."""
    top = texts.top.clone()
    top[: len(top) // 2] = -1
    result = train(target, texts._replace(top=top), tmp_path / "half", replace(CONFIG, kind=kind, batch_size=1))
    assert result.progress.num_tokens <= result.progress.step * LENGTH
    with pytest.raises(ConfigError, match="generated no part"):
        train(target, texts._replace(top=torch.full_like(top, -1)), tmp_path / "none", replace(CONFIG, kind=kind))


def test_no_text_is_trained_on_and_held_out_even_once_there_are_more(target, texts, tmp_path):
    """A run that begins with another's weights is not evaluated on texts that the other was trained on."""
    reader, half = FeatureReader(target, (0,), 4), len(texts.lengths) // 2
    fewer = Texts(texts.tokens[: half * LENGTH], texts.lengths[:half], texts.top[: half * LENGTH])
    splits = [
        split_texts(FeatureSet(some, reader, tmp_path, LENGTH, 0, torch.device("cpu")), 8) for some in (fewer, texts)
    ]
    for (trained, held_out), count in zip(splits, (half, 2 * half), strict=True):
        assert len(held_out) == 8
        assert sorted([*trained, *held_out]) == list(range(count))
    assert not set(splits[0][0]) & set(splits[1][1])
    cut = FeatureSet(texts, reader, tmp_path, LENGTH - 8, 0, torch.device("cpu"))
    assert split_texts(cut, 8)[1] == splits[1][1]
