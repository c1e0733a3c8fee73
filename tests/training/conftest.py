"""The tiny target that drafters are trained for, and its texts."""

import pytest
import torch
from helpers.tiny import tiny_llama
from training_texts import VOCAB, write

from treespec.training.text.texts import Texts


@pytest.fixture(scope="session")
def target():
    return tiny_llama(vocab_size=VOCAB, num_layers=3, max_position_embeddings=128)


@pytest.fixture(scope="session")
def texts(target):
    """Forty sampled texts and forty greedy ones."""
    parts = [write(target, 40, seed=1, do_sample=True), write(target, 40, seed=2)]
    return Texts(*map(torch.cat, zip(*parts, strict=True)))
