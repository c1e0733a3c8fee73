"""Features on disk, texts that cannot be learned from, which texts are held out, and which a step reads."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from helpers.tiny import tiny_llama
from helpers.training import CONFIG, LENGTH, VOCAB, write

from treespec.errors import CheckpointError, ConfigError
from treespec.training import train
from treespec.training.data import FeatureSet, Sampler
from treespec.training.features import FeatureReader
from treespec.training.text.texts import Texts


def test_features_are_read_again_where_the_bound_leaves_no_room(target, texts, tmp_path):
    found = {}
    for bound in (0.0, math.inf):
        config = replace(CONFIG, num_steps=1, max_cache_gb=bound)
        found[bound] = train(target, texts, tmp_path / str(bound), config).evaluation.overlap
        assert any((tmp_path / str(bound) / "features").glob("*")) == (bound > 0)
    assert found[0.0] == pytest.approx(found[math.inf], abs=1e-3)


def test_damaged_features_are_named(target, texts, tmp_path):
    train(target, texts, tmp_path, replace(CONFIG, num_steps=1))
    shard = next((tmp_path / "features").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=shard.name):
        train(target, texts, tmp_path, replace(CONFIG, num_steps=1))


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
def test_texts_of_another_model_or_none_are_refused(target, texts, tmp_path, name, change, words):
    changed = texts._replace(**{name: change(getattr(texts, name))})
    with pytest.raises(ConfigError, match=words):
        train(target, changed, tmp_path, CONFIG)


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
    result = train(
        target, texts._replace(top=top), tmp_path / "half", replace(CONFIG, kind=kind, batch_size=1, num_steps=5)
    )
    assert result.progress.num_tokens <= result.progress.step * LENGTH
    with pytest.raises(ConfigError, match="generated no part"):
        train(target, texts._replace(top=torch.full_like(top, -1)), tmp_path / "none", replace(CONFIG, kind=kind))


def test_no_text_is_trained_on_and_held_out_even_once_there_are_more(target, texts, tmp_path):
    """A run that begins with another's weights is not evaluated on texts that the other was trained on."""
    reader, half = FeatureReader(target, (0,), 4), len(texts.lengths) // 2
    fewer = Texts(texts.tokens[: half * LENGTH], texts.lengths[:half], texts.top[: half * LENGTH])
    splits = [FeatureSet(some, reader, tmp_path, LENGTH, 0, torch.device("cpu")).split(8) for some in (fewer, texts)]
    for (trained, held_out), count in zip(splits, (half, 2 * half), strict=True):
        assert len(held_out) == 8
        assert sorted([*trained, *held_out]) == list(range(count))
    assert not set(splits[0][0]) & set(splits[1][1])
    cut = FeatureSet(texts, reader, tmp_path, LENGTH - 8, 0, torch.device("cpu"))
    assert cut.split(8)[1] == splits[1][1]


def test_features_of_a_batch_are_those_of_single_texts(target):
    texts = write(target, 3).tokens.split(LENGTH)
    cut = [texts[0], texts[1][:7], texts[2][:30]]
    together = FeatureReader(target, (0, 2), 5, torch.float32).read_all(cut)
    for text, found in zip(cut, together, strict=True):
        with torch.no_grad():
            output = target(text[None], output_hidden_states=True)
        states = torch.cat([output.hidden_states[0], output.hidden_states[2]], -1)[0]
        torch.testing.assert_close(found.states, states, atol=1e-5, rtol=1e-4)
        probs = output.logits[0].softmax(-1)
        assert (probs.gather(1, found.top_ids.long()) - found.top_probs).abs().max() < 1e-3
        assert torch.equal(found.top_ids[:, 0].long(), probs.argmax(-1))
    with pytest.raises(ConfigError, match="training mode"):
        FeatureReader(tiny_llama().train(), (0,))
