"""Features of batches are those of single texts."""

import pytest
import torch
from helpers.tiny import tiny_llama
from helpers.training import LENGTH, write

from treespec.errors import ConfigError
from treespec.training.features import FeatureReader


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


def test_features_are_not_read_in_training_mode():
    with pytest.raises(ConfigError, match="training mode"):
        FeatureReader(tiny_llama().train(), (0,))
